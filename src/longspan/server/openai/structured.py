"""Fields that say what form an answer must have, and the grammar that they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.model.grammar import choice_grammar, regex_grammar, schema_grammar, written_grammar
from longspan.server.contract import ServedModel

MAX_CHOICE_TEXTS = 1024
"""Most texts of `choice`."""

JsonSchema = dict[str, Any] | bool
SchemaOrText = dict[str, Any] | bool | str
"""A schema, or its JSON as a text."""
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICE_TEXTS)]


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A named schema. Every answer follows it to the letter, whether `strict` is set or not."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: JsonSchema | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """text: anything. json_object: any JSON object. json_schema: JSON that the schema accepts."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's field of this name: one of json, regex, choice, grammar and json_object.

    whitespace_pattern: regular expression of what may stand between the tokens of JSON. disable_any_whitespace:
    nothing may. grammar: in Lark or GBNF.
    """

    json: SchemaOrText | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None


class FormFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What form the answer must have; at most one of these. The `guided_` fields are vLLM's older names."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None


def answer_grammar(fields: FormFields, model: ServedModel) -> str:
    """The grammar that the answer must follow, empty for none. Compiles it: call it on a worker thread.

    Raises RequestError, its `param` the field, for a form that cannot be kept or for two forms at once.
    """
    wanted = list(_wanted(fields))
    if not wanted:
        return ""
    if len(wanted) > 1:
        names = " and ".join(f"`{name}`" for name, _, _ in wanted)
        raise RequestError(f"{names} both say what form the answer has; send one.", param=wanted[1][0])
    ((param, kind, value),) = wanted
    return checked_grammar(kind, value, param, _whitespace(fields, param), model)


def checked_grammar(kind: str, value: Any, param: str, whitespace: str | None, model: ServedModel) -> str:
    """The grammar of one form. kind: "json", "regex", "choice" or "grammar". Raises RequestError naming `param`."""
    try:
        if kind == "json":
            grammar = schema_grammar(_schema(value, param), whitespace=whitespace)
        elif kind == "regex":
            grammar = regex_grammar(value)
        elif kind == "choice":
            grammar = choice_grammar(value)
        else:
            grammar = written_grammar(value)
    except RequestError as error:
        raise RequestError(
            f"`{param}` cannot be honoured: {error}", param=param, code="unsupported_grammar"
        ) from None
    model.grammars.check(grammar, param)
    return grammar


def _wanted(fields: FormFields) -> list[tuple[str, str, Any]]:
    """(field, kind, value) of every form that is asked for."""
    found: list[tuple[str, str, Any]] = []
    wanted = fields.response_format
    if wanted is not None:
        if wanted.json_schema is not None and wanted.type != "json_schema":
            raise RequestError(
                "`response_format.json_schema` belongs to the type `json_schema`.",
                param="response_format.json_schema",
            )
        if wanted.type == "json_object":
            found.append(("response_format", "json", {"type": "object"}))
        elif wanted.type == "json_schema":
            if wanted.json_schema is None or wanted.json_schema.schema is None:
                missing = "json_schema" if wanted.json_schema is None else "json_schema.schema"
                raise RequestError(
                    f"`response_format.{missing}` is required.",
                    param=f"response_format.{missing}",
                    code="missing_required_parameter",
                )
            found.append(("response_format.json_schema.schema", "json", wanted.json_schema.schema))
    outputs = fields.structured_outputs
    if outputs is not None:
        inside = [
            (f"structured_outputs.{kind}", kind, value)
            for kind in ("json", "regex", "choice", "grammar")
            if (value := getattr(outputs, kind)) is not None
        ]
        if outputs.json_object:
            inside.append(("structured_outputs.json_object", "json", {"type": "object"}))
        if not inside:
            raise RequestError(
                "`structured_outputs` needs one of json, regex, choice, grammar and json_object.",
                param="structured_outputs",
            )
        found += inside
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(fields, f"guided_{kind}")
        if value is not None:
            found.append((f"guided_{kind}", kind, value))
    return found


def _whitespace(fields: FormFields, param: str) -> str | None:
    """What may stand between the tokens of JSON: a regular expression, None for the usual."""
    outputs = fields.structured_outputs
    if outputs is not None and param.startswith("structured_outputs"):
        if outputs.disable_any_whitespace:
            if outputs.whitespace_pattern:
                raise RequestError(
                    "`structured_outputs.whitespace_pattern` contradicts `disable_any_whitespace`; send one.",
                    param="structured_outputs.whitespace_pattern",
                )
            return ""
        return outputs.whitespace_pattern
    return fields.guided_whitespace_pattern


def _schema(value: Any, param: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        schema = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the text is not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise RequestError("a schema is a JSON object or a boolean")
    return schema
