"""The OpenAPI document as a page: no scripts, nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
a { color: #0b57c2; }
@media (prefers-color-scheme: dark) { body { background: #14191f; color: #d8dee6; } a { color: #7db2ff; } }
code, .method { font-family: ui-monospace, monospace; font-size: 0.92em; }
details { border: 1px solid #8886; border-radius: 6px; margin: 0.5rem 0; padding: 0.4rem 0.8rem; }
summary { cursor: pointer; }
.method { display: inline-block; width: 3.2rem; font-weight: 600; text-transform: uppercase; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #8883; }
.note { opacity: 0.75; white-space: pre-line; scroll-margin-top: 3rem; }
td:nth-child(2) { overflow-wrap: anywhere; }
"""
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "length at least {}",
    "maxLength": "length at most {}",
    "minItems": "entries at least {}",
    "maxItems": "entries at most {}",
    "maxProperties": "entries at most {}",
    "pattern": "matches {}",
}
_NO_LIMIT = 2**31 - 1
"""A number from here on is what fits into its type, and tells nobody anything."""

_REFERENCE = "#/components/schemas/"


def page(document: dict[str, Any]) -> str:
    """HTML of an OpenAPI document."""
    information, schemas = document["info"], document["components"]["schemas"]
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    objects = "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
    title = escape(information["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{title} {escape(information['version'])}</h1>"
        f"<p>{escape(information['description'])} "
        "The same for programs: <a href='openapi.json'><code>/openapi.json</code></a>.</p>"
        f"<h2>Endpoints</h2>{operations}<h2>Objects</h2>{objects}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    body = operation.get("requestBody")
    if body is not None:
        rows.append(("request", _type(body["content"]["application/json"]["schema"])))
    for status, response in operation["responses"].items():
        bodies = response.get("content", {})
        kinds = " or ".join(_content(kind, content["schema"]) for kind, content in bodies.items())
        rows.append((status, escape(response["description"]) + (f": {kinds}" if kinds else "")))
    table = "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows)
    return (
        f"<details><summary><span class=method>{escape(method)}</span> <code>{escape(path)}</code> "
        f"— {escape(operation['summary'])}</summary><table>{table}</table></details>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    fields = sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required)
    rows = "".join(
        # A narrow window may break a name where its words end.
        f"<tr><td><code>{escape(field).replace('_', '_<wbr>')}</code></td><td>{_type(kind)}{_limits(kind)}</td>"
        f"<td>{'required' if field in required else _default(kind)}</td></tr>"
        for field, kind in fields
    )
    note = escape(schema.get("description", ""))
    return (
        # The name stands inside, so that browsers open the object when somebody goes there.
        f"<details><summary><code>{escape(name)}</code></summary>"
        f'<p class=note id="{escape(name)}">{note}</p><table>{rows}</table></details>'
    )


def _content(kind: str, schema: dict[str, Any]) -> str:
    """A body in a few words; that an object is JSON goes without saying."""
    return _type(schema) if "$ref" in schema else f"<code>{escape(kind)}</code>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to objects."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {_type(items)}" if items else "list"
    return escape(str(kind)) if kind else "anything"


def _limits(schema: dict[str, Any]) -> str:
    texts = [
        text.format(f"{limit:g}" if isinstance(limit, float) else limit)
        for part in (schema, *schema.get("anyOf", ()))
        for name, text in _LIMITS.items()
        if (limit := part.get(name)) is not None and (isinstance(limit, str) or abs(limit) < _NO_LIMIT)
    ]
    return f" ({escape(', '.join(texts))})" if texts else ""


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None else f"default <code>{escape(json.dumps(value))}</code>"
