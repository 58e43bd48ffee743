{{- define "polyrec.name" -}}
{{- if contains "polyrec" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-polyrec" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "polyrec.selector" -}}
app.kubernetes.io/name: polyrec
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "polyrec.labels" -}}
{{ include "polyrec.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "polyrec.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Why a probe has the scheme that it has: without it the kubelet speaks HTTP to a server with a certificate. */}}
{{- define "polyrec.probe" -}}
httpGet: {path: {{ .path }}, port: http, scheme: {{ if .root.Values.tls.secretName }}HTTPS{{ else }}HTTP{{ end }}}
{{- end }}
