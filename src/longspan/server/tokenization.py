"""/tokenize, /detokenize and /tokenizer_info, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from longspan.errors import RequestError
from longspan.server.body import decode_body, read_body
from longspan.server.contract import ServedModel
from longspan.server.openai.fields import check_model
from longspan.server.openai.logprobs import token_text
from longspan.server.openai.messages import Messages, template_messages
from longspan.server.prompts import chat_prompt, require_template, text_prompt, token_prompt
from longspan.server.service import Service

MAX_TOKENS = 1 << 20


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Either a prompt or messages. add_special_tokens: for a prompt, on unless it is false."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True):
    """token_strs: the text of each token, on `return_token_strs`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Tokens to be written as text, control tokens included."""

    tokens: Annotated[list[int], Meta(max_length=MAX_TOKENS)]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """The text of the tokens."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True):
    """What a client needs to know to write prompts as the model does; null for what the model does not have."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
    vocab_size: int
    model_max_length: int


_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


class TokenizationEndpoints:
    """What a client needs to count tokens as the model does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/tokenizer_info", self.tokenizer_info, methods=["GET"]),
        ]

    async def tokenize(self, http: Request) -> Response:
        """POST /tokenize"""
        request = decode_body(_tokenize_decoder, await read_body(http, self._service.options))
        answer = await self._service.worker.run(_tokenized, request, self._service.engine.model)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def detokenize(self, http: Request) -> Response:
        """POST /detokenize"""
        request = decode_body(_detokenize_decoder, await read_body(http, self._service.options))
        answer = await self._service.worker.run(_detokenized, request, self._service.engine.model)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def tokenizer_info(self, _http: Request) -> Response:
        """GET /tokenizer_info"""
        return Response(msgspec.json.encode(_info(self._service.engine.model)), media_type="application/json")


def _info(model: ServedModel) -> TokenizerInfo:
    tokenizer = model.tokenizer
    end = None if tokenizer.eos is None else token_text(tokenizer.piece(tokenizer.eos))
    return TokenizerInfo(
        bos_token=None if tokenizer.bos is None else token_text(tokenizer.piece(tokenizer.bos)),
        eos_token=end,
        # Nothing is padded here; clients that want to pad do it with the end token.
        pad_token=end,
        chat_template=None if model.chat_template is None else model.chat_template.source,
        vocab_size=tokenizer.vocabulary_size,
        model_max_length=model.context_length,
    )


def _tokenized(request: TokenizeRequest, model: ServedModel) -> TokenizeAnswer:
    check_model(request.model, model)
    tokens = _prompt_tokens(request, model)
    texts = [token_text(model.tokenizer.piece(token)) for token in tokens] if request.return_token_strs else None
    return TokenizeAnswer(len(tokens), model.context_length, tokens, texts)


def _prompt_tokens(request: TokenizeRequest, model: ServedModel) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("Send either `prompt` or `messages`.", param="prompt")
    if request.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(request, name):
                raise RequestError(f"`{name}` belongs to `messages`, not to `prompt`.", param=name)
        special = request.add_special_tokens is not False
        return text_prompt(model, request.prompt, param="prompt", add_special=special)
    if request.add_special_tokens:
        raise RequestError(
            "`add_special_tokens` belongs to `prompt`, not to `messages`.", param="add_special_tokens"
        )
    assert request.messages is not None
    continues = bool(request.continue_final_message)
    return chat_prompt(
        model,
        template_messages(request.messages, require_template(model)),
        add_generation_prompt=not continues and request.add_generation_prompt is not False,
        continue_final_message=continues,
        template_arguments=dict(request.chat_template_kwargs or {}),
    )


def _detokenized(request: DetokenizeRequest, model: ServedModel) -> DetokenizeAnswer:
    check_model(request.model, model)
    tokens = token_prompt(model, request.tokens, param="tokens")
    return DetokenizeAnswer(model.tokenizer.decode(tokens, special=True))
