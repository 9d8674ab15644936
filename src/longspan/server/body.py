"""Request bodies: read within a limit, decoded into a struct, errors that name the field."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from longspan.errors import RequestError
from longspan.server.error_body import BodyTimeoutError, BodyTooLargeError
from longspan.server.options import ServerOptions

Struct = TypeVar("Struct", bound=msgspec.Struct)

_AT_PATH = re.compile(r"^(?P<what>.*) - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)


async def read_body(request: Request, options: ServerOptions) -> bytes:
    """The whole body.

    Raises BodyTooLargeError as soon as it is known to be over the limit, BodyTimeoutError when it takes too long.
    """
    try:
        async with asyncio.timeout(options.receive_timeout_seconds):
            return await _read(request, options.body_limit)
    except TimeoutError as error:
        raise BodyTimeoutError(options.receive_timeout_seconds) from error


async def _read(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise BodyTooLargeError(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def decode_body(decoder: msgspec.json.Decoder[Struct], body: bytes) -> Struct:
    """The body as a struct. Raises RequestError that says where the JSON is malformed, or which field is wrong."""
    if not body.strip():
        raise RequestError("The request has no body; send a JSON object.", code="invalid_json")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from error
    except msgspec.DecodeError as error:
        where = f" (byte {len(body)})" if "truncated" in str(error) else ""
        raise RequestError(f"The request's body is not JSON: {error}{where}.", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("The request's body is nested too deeply.", code="invalid_json") from error


def field_error(message: str) -> RequestError:
    """What msgspec says of a value that does not fit its struct, as an error that names the field."""
    placed = _AT_PATH.match(message)
    what, path = (placed["what"], placed["path"]) if placed else (message, "")
    if unknown := _UNKNOWN.match(what):
        field = _join(path, unknown["field"])
        return RequestError(f"Unknown field: `{field}`.", param=field, code="unknown_parameter")
    if missing := _MISSING.match(what):
        field = _join(path, missing["field"])
        return RequestError(f"`{field}` is required.", param=field, code="missing_required_parameter")
    if not path:
        return RequestError(f"The request's body must be a JSON object: {what}.", code="invalid_type")
    # Values of an object have no name of their own: the object is named.
    param = path.split("[...]")[0]
    return RequestError(f"`{param}` cannot be used: {_lower(what)}.", param=param, code="invalid_value")


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
