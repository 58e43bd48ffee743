# Polyrec as a container: `polyrec` is the entry point, serving the bundle mounted at /bundle the default.
#
#   docker build -t polyrec .
#   docker run --rm -p 8000:8000 -v "$PWD/bundle:/bundle:ro" polyrec
#   docker run --rm polyrec --help
#
# With gRPC beside HTTP:
#   docker build --build-arg EXTRAS=otel,grpc -t polyrec .
#   docker run --rm -p 8000:8000 -p 8001:8001 -e POLYREC_GRPC_PORT=8001 -v "$PWD/bundle:/bundle:ro" polyrec
#
# TORCH_INDEX is where the CPU build of torch (0.2 GB) comes from. `--build-arg TORCH_INDEX=` leaves it
# out: then the build is PyPI's, gigabytes of CUDA, for `docker run --gpus all`.
#
# EXTRAS names extras of pyproject.toml, separated by commas. The default is a server with traces; for a toolbox
# that trains, plans and loads:  docker build --build-arg EXTRAS=otel,train,plan,load,report -t polyrec-tools .
#
# For a build that can be repeated and checked, name the base by digest, and say what is built:
#   docker buildx build --provenance=mode=max --build-arg PYTHON_IMAGE=docker.io/library/python@sha256:... \
#     --build-arg REVISION="$(git rev-parse HEAD)" --build-arg CREATED="$(date -u +%Y-%m-%dT%H:%M:%SZ)" -t polyrec .
# Its bill of materials (CycloneDX) is in the image:
#   docker run --rm --entrypoint cat polyrec /opt/polyrec/sbom.cdx.json
# To fail on packages with known vulnerabilities:
#   docker build --target audit .
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=otel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
RUN python3 -m venv /opt/polyrec
ENV PATH=/opt/polyrec/bin:$PATH

# dependencies first, read from pyproject.toml alone: this layer stays while only Polyrec's code changes
COPY pyproject.toml constraints.txt ./
RUN python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        extras = [e for e in sys.argv[1].split(",") if e]; \
        print(*p["dependencies"], *(r for e in extras for r in p["optional-dependencies"][e]), sep="\n")' \
        "${EXTRAS}" > requirements.txt \
    && pip install --constraint constraints.txt --requirement requirements.txt \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"}

COPY . .
# the image needs no package manager
RUN pip install --no-deps . && pip uninstall --yes pip


FROM build AS materials
ARG CYCLONEDX=cyclonedx-bom==7.5.0
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install "${CYCLONEDX}" \
    && /opt/tools/bin/cyclonedx-py environment /opt/polyrec/bin/python --output-reproducible \
        --spec-version 1.6 --output-format JSON --output-file /opt/sbom.cdx.json


FROM materials AS audit
ARG PIP_AUDIT=pip-audit==2.10.1
# a package that cannot be looked up fails as well
RUN /opt/tools/bin/pip install "${PIP_AUDIT}" \
    && /opt/tools/bin/pip-audit --strict --progress-spinner off --path "$(echo /opt/polyrec/lib/python3*/site-packages)"


FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="polyrec" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
# what is served needs no compiler, and a base that brings one is refused
RUN ! command -v cc && ! command -v gcc && ! command -v c++ && ! command -v clang && ! command -v ld
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin polyrec
COPY --from=build /opt/polyrec /opt/polyrec
COPY --from=materials /opt/sbom.cdx.json /opt/polyrec/sbom.cdx.json
ENV PATH=/opt/polyrec/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    POLYREC_HOST=0.0.0.0 \
    POLYREC_PORT=8000
# a number, so that an orchestrator can see that it is not root
USER 10001
WORKDIR /home/polyrec
VOLUME /bundle
# gRPC listens only if POLYREC_GRPC_PORT is set
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-m", "polyrec.server.app.healthcheck"]
ENTRYPOINT ["polyrec"]
CMD ["serve", "--bundle", "/bundle"]
