"""`GET /docs`: the API for people, as one page of HTML made from its OpenAPI document.

It needs no script, no style and no font from elsewhere, as FastAPI's own pages do: many servers of models, and their
users, reach no other network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

Json = dict[str, Any]

router = APIRouter()

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
h2 { margin-top: 2.5rem; border-top: 1px solid #8888; padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid #8884; }
"""


@router.get("/docs", include_in_schema=False)
async def get_docs(request: Request) -> HTMLResponse:
    """The page."""
    return HTMLResponse(openapi_page(request.app.openapi()))


def openapi_page(document: Json) -> str:
    """The page of an OpenAPI document: each route with its fields, replies and statuses."""
    info = document["info"]
    title = escape(info["title"])
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = document.get("components", {}).get("schemas", {})
    contents = "".join(f"<li>{_link(method, path)}</li>" for method, path, _ in operations)
    parts = [part for one in operations for part in _operation(*one, schemas)]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>{_text(info.get('description', ''))}</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"<ul>{contents}</ul>{''.join(parts)}</body></html>"
    )


def _link(method: str, path: str) -> str:
    return f'<a href="#{method}{escape(path)}"><code>{method} {escape(path)}</code></a>'


def _operation(method: str, path: str, operation: Json, schemas: Json) -> Iterator[str]:
    yield f'<h2 id="{method}{escape(path)}"><code>{method} {escape(path)}</code></h2>'
    yield f"<p>{_text(operation.get('description') or operation.get('summary', ''))}</p>"
    if parameters := operation.get("parameters"):
        rows = [(one["name"], one["schema"], one.get("required", False)) for one in parameters]
        yield _table("Parameters", rows)
    if body := operation.get("requestBody"):
        yield from _fields("Body", body["content"], schemas)
    replies = operation["responses"]
    if (found := replies.get("200")) is not None:
        yield from _fields("Reply", found.get("content", {}), schemas)
    told = ", ".join(f"{status} {_text(reply.get('description', ''))}" for status, reply in replies.items())
    yield f"<p>Statuses: {told}</p>"


def _fields(heading: str, content: Json, schemas: Json) -> Iterator[str]:
    """A table of each model that the JSON content holds, models within models behind it."""
    waiting, seen = [_names(content.get("application/json", {}))], set()
    while waiting:
        for name in waiting.pop(0):
            if name in seen:
                continue
            seen.add(name)
            model = schemas[name]
            required = model.get("required", [])
            rows = [
                (field, schema, field in required) for field, schema in model.get("properties", {}).items()
            ]
            yield _table(f"{heading}: {name}", rows)
            waiting.append(_names(model))


def _names(schema: Any) -> list[str]:
    """Names of the models that a schema refers to, in order."""
    if isinstance(schema, list):
        return [name for one in schema for name in _names(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for one in schema.values() for name in _names(one)]


def _table(caption: str, rows: list[tuple[str, Json, bool]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(schema))}</td>"
        f"<td>{_default(schema, required)}</td><td>{_text(schema.get('description', ''))}</td></tr>"
        for name, schema, required in rows
    ]
    head = "<tr><th>field</th><th>type</th><th>default</th><th></th></tr>"
    return f"<h3>{escape(caption)}</h3><table>{head}{''.join(lines)}</table>"


def _default(schema: Json, required: bool) -> str:
    if required:
        return "required"
    return f"<code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""


def _type(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if kinds := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(map(_type, kinds)))
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    kind = schema.get("type", "any")
    return f"list of {_type(schema['items'])}" if kind == "array" and "items" in schema else str(kind)


def _text(description: str) -> str:
    """Plain words; what stands between backquotes is code."""
    parts = escape(" ".join(description.split())).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
