"""Declares endpoints to FastAPI, and generates the OpenAPI document from the declarations.

An `Endpoint` names typed models of its request and responses, from which FastAPI generates the document. They
are for documentation only: FastAPI neither validates requests nor serializes responses. So error messages can
name the field and the remedy, admin calls check the token before reading the body, and predictions are
serialized only once. tests/server/http/test_openapi.py checks the document against real answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Header, Path, Query, Security
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.requests import Request
from starlette.routing import request_response
from starlette.types import ASGIApp

from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.documents import Error
from polyrec.server.request_ids import MAX_BYTES

Tag = Literal["predictions", "inference protocol", "plan", "health", "status", "administration"]
TAGS: dict[Tag, str] = {
    "predictions": "Raw features in, probabilities out. The features are those of the model's schema.",
    "inference protocol": "The Open Inference Protocol (KServe, Triton): tensors of stable ids.",
    "plan": "Served paths, and the router's choice for a hypothetical request.",
    "health": "For load balancers and Prometheus.",
    "status": "The status page and its data.",
    "administration": "Changes to a running server. Needs a token with the right `admin`.",
}
DESCRIPTION = """Recommendation models behind a latency SLO.

Every request has a latency budget. The server answers within it on the execution path of the best quality
that the load allows, rejects the request (429) or lets it expire (504). Errors are `{"error": "..."}`. Bodies
may be compressed with gzip or deflate; responses of 1 KiB and more are if the client accepts it. HEAD works
wherever GET does. Every path below /v1 also exists per model, such as /v1/models/NAME/predict; this document
describes the default model.
"""
ERRORS: dict[int, str] = {
    400: "The request is not valid HTTP/1.1, or a header, a parameter or the body cannot be read.",
    401: "No token, or one that is not valid.",
    403: "The client lacks the right for this call.",
    404: "Unknown model or version.",
    408: "The head or the body of the request arrived too slowly.",
    409: "The call conflicts with the server's state.",
    413: "More bytes, values or rows than the server accepts.",
    414: "The URL is too long.",
    417: "The header Expect is not `100-continue`.",
    421: "Several processes share this port; send the call to each process's own port.",
    422: "The body can be read, but does not fit the schema.",
    429: "The backlog exceeds the latency budget, the queue or the server is full, or the client is over its "
    "rate.",
    431: "The head is too large.",
    500: "A defect of the server; its log has the details.",
    501: "The Transfer-Encoding is not implemented.",
    503: "Loading, stopping, or no lane is alive.",
    504: "The latency budget passed, or can no longer be met.",
    505: "Only HTTP/1.1 and 1.0 are supported.",
}
"""Description by status. The body is an `Error` unless the endpoint declares another model."""
REQUEST_ID_HEADER: dict[str, Any] = {
    "X-Request-Id": {
        "description": "The client's request id, or one made by the server.",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_BYTES},
    }
}
"""Header of every answer."""
REQUEST_ID_PARAMETER = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "Request id for logs and traces, repeated in the answer. Anything but 1 to "
    f"{MAX_BYTES} visible ASCII characters is replaced.",
    "schema": {"type": "string"},
}
ERROR_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    429: {
        "Retry-After": {
            "required": True,
            "description": "Seconds to wait before retrying.",
            "schema": {"type": "integer", "minimum": 1},
        }
    },
}
CONNECTION_ERRORS = (400, 408, 414, 417, 429, 431, 500, 501, 505)
"""Errors possible for every request: rejections by the connection, and failures of an endpoint."""
CLIENT_ERRORS = (401, 403, 413, 422, 503, 504)
"""Further errors possible for prediction requests."""
ADMIN_ERRORS = (401, 403, 409, 413, 421, 422, 503)
BEARER = HTTPBearer(scheme_name="token", description="A token of the tokens file, or POLYREC_ADMIN_TOKEN.")
PATH_PARAMETERS: dict[str, Any] = {
    "model": Annotated[str, Path(description="Name of the model.")],
    "version": Annotated[str, Path(description="Version of the bundle that is served.")],
}
PATH_HEADER: dict[str, Any] = {
    "X-Polyrec-Path": {
        "required": True,
        "description": "The execution path that answered.",
        "schema": {"type": "string"},
    },
    "X-Polyrec-Arm": {
        "description": "The version that answered, during a rollout.",
        "schema": {"enum": ["stable", "canary"]},
    },
}
AUTOMATIC = ("HTTPValidationError", "ValidationError")
"""FastAPI's models for its own validation errors, which never occur here."""

Handler = Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A request's body: the model of its JSON, and the media types accepted in addition to JSON."""

    model: Any
    required: bool = True
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Success:
    """A response with status 200: the model of its JSON, None if it has no JSON.

    content: media types in addition to or instead of JSON.
    """

    model: Any = None
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)

    def documented(self) -> dict[str, Any]:
        """Returns the OpenAPI response object, without the model."""
        entries = {"content": dict(self.content), "headers": dict(self.headers)}
        return {name: entry for name, entry in entries.items() if entry}


class Endpoint(APIRoute):
    """A route that FastAPI documents but `answer` handles.

    answer: a function of the request, or an ASGI application.
    query, headers: models of parameters.
    errors: statuses in addition to CONNECTION_ERRORS.
    error_models: models of error bodies other than `Error`.
    token: whether clients need a token; `maybe` if that depends on the server's settings.
    include_in_schema: whether the document lists the endpoint.
    """

    # like a route of FastAPI: a declaration by keywords
    def __init__(  # noqa: PLR0913
        self,
        path: str,
        answer: Handler | ASGIApp,
        *,
        tag: Tag,
        summary: str,
        description: str = "",
        method: Literal["GET", "POST"] = "GET",
        request: RequestBody | None = None,
        query: type[BaseModel] | None = None,
        headers: type[BaseModel] | None = None,
        response: Success,
        errors: Sequence[int] = (),
        error_models: Mapping[int, type[BaseModel]] | None = None,
        token: Literal["never", "maybe", "always"] = "never",
        include_in_schema: bool = True,
    ) -> None:
        extra: dict[str, Any] = {} if token != "maybe" else {"security": [{}]}
        if request is not None and request.content:
            extra["requestBody"] = {"content": dict(request.content)}
        error_models = error_models or {}
        super().__init__(
            path,
            _Declaration(path, query, headers, request),
            methods=[method],
            tags=[tag],
            summary=summary,
            operation_id=_operation_id(method, path),
            response_model=response.model,
            response_class=Response if response.model is None else JSONResponse,
            response_description="OK",
            responses={200: response.documented(), **{s: {"model": m} for s, m in error_models.items()}},
            dependencies=[] if token == "never" else [Security(BEARER)],
            openapi_extra=extra,
            include_in_schema=include_in_schema,
        )
        self.description = description  # otherwise FastAPI takes the docstring of _Declaration
        self.method = method.lower()
        self.errors = sorted({*CONNECTION_ERRORS, *errors} - error_models.keys())
        self.inline_responses = ["200", *map(str, error_models)]
        is_function = inspect.isfunction(answer) or inspect.ismethod(answer)
        self.app = request_response(answer) if is_function else answer  # type: ignore[arg-type, assignment]
        if method == "GET":
            self.methods = {"GET", "HEAD"}

    def documented(self) -> Endpoint:
        """Returns a copy without HEAD, for the document."""
        route = copy(self)
        route.methods = {self.method.upper()}
        return route


class _Declaration:
    """A callable whose signature tells FastAPI an endpoint's parameters. Never called."""

    def __init__(
        self,
        path: str,
        query: type[BaseModel] | None,
        headers: type[BaseModel] | None,
        request: RequestBody | None,
    ) -> None:
        self.__name__ = path
        parameters = {name: kind for name, kind in PATH_PARAMETERS.items() if f"{{{name}}}" in path}
        if query is not None:
            parameters["query"] = Annotated[query, Query()]
        if headers is not None:
            parameters["headers"] = Annotated[headers, Header()]
        if request is not None:
            parameters["body"] = Annotated[request.model, Body()]
        optional = request is not None and not request.required
        defaults = {"body": None} if optional else {}
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=annotation,
                    default=defaults.get(name, inspect.Parameter.empty),
                )
                for name, annotation in parameters.items()
            ]
        )

    def __call__(self) -> None:
        raise NotImplementedError


def text_response(media_type: str) -> Success:
    """Returns the declaration of a text response."""
    return Success(content={media_type: {"schema": {"type": "string"}}})


def _operation_id(method: str, path: str) -> str:
    """Returns an operation id, such as `post_v2_models_model_infer` for `POST /v2/models/{model}/infer`."""
    words = "".join(c if c.isalnum() else " " for c in f"{method.lower()}/{path}").split()
    return "_".join(words)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Generates the OpenAPI 3.1 document of an application's endpoints; takes tenths of a second."""
    endpoints = [r for r in app.routes if isinstance(r, Endpoint) and r.include_in_schema]
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=DESCRIPTION,
        routes=[endpoint.documented() for endpoint in endpoints],
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        separate_input_output_schemas=False,
    )
    for endpoint in endpoints:
        operation = document["paths"][endpoint.path][endpoint.method]
        operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/RequestId"})
        for status in endpoint.inline_responses:
            operation["responses"][status].setdefault("headers", {}).update(REQUEST_ID_HEADER)
        operation["responses"] = {
            **{status: operation["responses"][status] for status in endpoint.inline_responses},
            **{str(status): {"$ref": f"#/components/responses/Error{status}"} for status in endpoint.errors},
        }
    components = document["components"]
    for name in AUTOMATIC:
        components["schemas"].pop(name, None)
    components["parameters"] = {"RequestId": REQUEST_ID_PARAMETER}
    components["schemas"]["Error"] = Error.model_json_schema()
    components["responses"] = {f"Error{status}": _error_response(status) for status in ERRORS}
    return document


def _error_response(status: int) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    response["headers"] = REQUEST_ID_HEADER | ERROR_HEADERS.get(status, {})
    return response
