// Renders a Helm chart as `helm template` does, for machines that have Go and Debian's packages but no Helm.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run helm_template.go CHART RELEASE NAMESPACE < values.yaml
//
// Standard input has the values, merged over those of the chart. Of Helm's own functions it has include, toYaml
// and .Files.Get, which is what the chart uses; the others are Sprig's, as in Helm.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type files struct{ folder string }

func (f files) Get(name string) string { return string(read(filepath.Join(f.folder, name))) }

func read(path string) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	return text
}

func parse(text []byte) map[string]interface{} {
	parsed := map[string]interface{}{}
	if err := yaml.Unmarshal(text, &parsed); err != nil {
		log.Fatal(err)
	}
	// Helm reads YAML as JSON, of which Go makes all numbers float64
	asJson, err := json.Marshal(parsed)
	if err != nil {
		log.Fatal(err)
	}
	parsed = map[string]interface{}{}
	if err := json.Unmarshal(asJson, &parsed); err != nil {
		log.Fatal(err)
	}
	return parsed
}

func merge(into, from map[string]interface{}) map[string]interface{} {
	for key, value := range from {
		inner, isMap := value.(map[string]interface{})
		if old, wasMap := into[key].(map[string]interface{}); isMap && wasMap {
			into[key] = merge(old, inner)
		} else {
			into[key] = value
		}
	}
	return into
}

func main() {
	log.SetFlags(0)
	folder, release, namespace := os.Args[1], os.Args[2], os.Args[3]
	given := parse(read("/dev/stdin"))
	chart := parse(read(filepath.Join(folder, "Chart.yaml")))
	described := map[string]interface{}{}
	for key, value := range chart {
		described[strings.ToUpper(key[:1])+key[1:]] = value
	}
	data := map[string]interface{}{
		"Values":  merge(parse(read(filepath.Join(folder, "values.yaml"))), given),
		"Chart":   described,
		"Release": map[string]interface{}{"Name": release, "Namespace": namespace, "Service": "Helm"},
		"Files":   files{folder},
	}
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		if err != nil {
			log.Fatal(err)
		}
		return strings.TrimSuffix(string(text), "\n")
	}
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	all.Funcs(functions)
	paths, _ := filepath.Glob(filepath.Join(folder, "templates", "*"))
	sort.Strings(paths)
	for _, path := range paths {
		template.Must(all.New(filepath.Base(path)).Parse(string(read(path))))
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text bytes.Buffer
		if err := all.ExecuteTemplate(&text, name, data); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("---\n# Source: %s\n%s", name, text.String())
	}
}
