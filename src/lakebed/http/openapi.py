"""The OpenAPI description, made from the declarations of endpoints and the structs that they exchange. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lakebed.http.declaration import Parameter, Route
from lakebed.http.errors import ErrorBody

_PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")
_SCHEMAS: Final = "#/components/schemas/{name}"
_STATUS_TEXTS: Final = {
    200: "Done.",
    201: "Created.",
    202: "Accepted.",
    204: "Done.",
    206: "The requested range.",
    302: "Redirect to the object's URL.",
    304: "Not modified.",
}
_ERRORS: Final = {
    400: "The request is invalid.",
    401: "Missing or invalid credentials, or a user whose policies do not permit this.",
    403: "The credentials do not permit this.",
    404: "Not found.",
    409: "It already exists, or a concurrent or contradicting change was made.",
    412: "A precondition of the request or a hook failed.",
    413: "The body or a part of it is too large.",
    415: "The body is compressed.",
    416: "The range is outside the object.",
    503: "The store is unavailable, or the outcome is unknown: check, then retry.",
}


@dataclass(frozen=True, slots=True)
class PathParameter:
    """A variable part of paths."""

    description: str
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """What a description says about the service as a whole.

    Attributes:
        path_parameters: the parameters of all paths, by name.
        error: the struct of every error's body.
    """

    title: str
    version: str
    description: str
    path_parameters: Mapping[str, PathParameter]
    error: type[msgspec.Struct] = ErrorBody


def describe(service: Service, routes: Mapping[str, Iterable[Route[Any]]]) -> dict[str, Any]:
    """The OpenAPI description of an interface; `routes` by the prefix of their paths."""
    prefixed_routes = [(prefix, route) for prefix, endpoints in routes.items() for route in endpoints]
    endpoints = [route.endpoint for _, route in prefixed_routes]
    kinds = [
        kind
        for endpoint in endpoints
        for kind in (endpoint.takes, *endpoint.gives.values())
        if kind not in (None, bytes, str)
    ]
    schemas, components = msgspec.json.schema_components([*kinds, service.error], ref_template=_SCHEMAS)
    for component in components.values():
        _loosen_arrays(component)
    by_kind = dict(zip([repr(kind) for kind in (*kinds, service.error)], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for prefix, route in prefixed_routes:
        shown_path = _PARAMETER.sub(r"{\1}", prefix + route.endpoint.path)
        paths.setdefault(shown_path, {})[route.endpoint.method.lower()] = _operation(route, by_kind, service)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": service.title,
            "version": service.version,
            "description": service.description,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "An access key and its secret."},
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token: <access key>.<secret>."},
            },
        },
        "security": [{"basic": []}, {"bearer": []}],
    }


def _loosen_arrays(component: dict[str, Any]) -> None:
    """For a struct that is encoded as an array, describe the types of its elements, without their positions.

    Few tools implement ``prefixItems`` as the standard defines it; some refuse the whole description.
    """
    elements = component.pop("prefixItems", None)
    if elements is not None:
        component["items"] = {"anyOf": [element for at, element in enumerate(elements) if element not in elements[:at]]}


def _operation(route: Route[Any], by_kind: Mapping[str, Any], service: Service) -> dict[str, Any]:
    endpoint, path_names = route.endpoint, service.path_parameters
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": route.summary,
        "tags": [endpoint.tag],
        "parameters": [
            *(_path_parameter(name, path_names.get(name)) for name in _PARAMETER.findall(endpoint.path)),
            *map(_parameter, endpoint.parameters),
        ],
        "responses": {str(status): _reply(status, kind, by_kind) for status, kind in endpoint.gives.items()},
    }
    error = {"application/json": {"schema": by_kind[repr(service.error)]}}
    for status, sentence in _ERRORS.items():
        operation["responses"].setdefault(str(status), {"description": sentence, "content": error})
    operation["responses"]["default"] = {"description": "The server failed.", "content": error}
    if endpoint.takes is not None:
        operation["requestBody"] = {"required": endpoint.body_required, "content": _body(endpoint.takes, by_kind)}
    if endpoint.needs is None:
        operation["security"] = []
    return operation


def _path_parameter(name: str, parameter: PathParameter | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if parameter is not None and parameter.pattern is not None:
        schema["pattern"] = parameter.pattern
    description = name if parameter is None else parameter.description
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.bounds is not None:
        schema |= {"minimum": parameter.bounds[0], "maximum": parameter.bounds[1]}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "schema": schema,
        "description": parameter.description,
    }


def _body(kind: Any, by_kind: Mapping[str, Any]) -> dict[str, Any]:
    if kind is bytes:
        form = {"type": "object", "properties": {"content": {"type": "string", "format": "binary"}}}
        return {"application/octet-stream": {}, "multipart/form-data": {"schema": form}}
    return {"application/json": {"schema": by_kind[repr(kind)]}}


def _reply(status: int, kind: Any, by_kind: Mapping[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": _STATUS_TEXTS.get(status, "Done.")}
    if kind is bytes:
        reply["content"] = {"*/*": {}}
    elif kind is str:
        reply["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif kind is not None:
        reply["content"] = {"application/json": {"schema": by_kind[repr(kind)]}}
    return reply
