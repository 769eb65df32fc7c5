"""`POST /tokenize` and `/detokenize`: the verifier's own tokenizer, as completions use it for the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from fastapi import APIRouter, Request, Response
from pydantic import Field
from pydantic_core import to_json

from app.completions.fields import TokenIds
from app.completions.request import Model
from app.engine import Engine, InvalidRequest
from app.routes.parts import BODY_ERRORS, ThisGateway, admitted, body_schema, check_model, read
from app.text.cancellation import check

router = APIRouter(tags=["tokenizer"])
PIECE = 10_000
"""Entries of a reply that are written at a time."""


class TokenizeRequest(Model):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeReply(Model):
    """`max_model_len` bounds the decoder, `max_encoder_len` is what `count` has to stay within."""

    count: int
    max_model_len: int
    max_encoder_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Model):
    model: str | None = None
    tokens: TokenIds = Field(max_length=1_000_000)


class DetokenizeReply(Model):
    prompt: str


@router.post(
    "/tokenize",
    openapi_extra=body_schema(TokenizeRequest),
    response_class=Response,
    responses={200: {"model": TokenizeReply}, **BODY_ERRORS},
)
async def tokenize(request: Request, gateway: ThisGateway) -> Response:
    """Ids of a text."""
    engine, body = await read(request, gateway, TokenizeRequest)
    check_model(gateway, body.model)
    async with admitted(request, gateway):
        content = await gateway.tokenizing.submit(len(body.prompt), _tokenized, body, engine)
    return Response(content, media_type="application/json")


def _tokenized(body: TokenizeRequest, engine: Engine) -> bytes:
    """The reply's JSON. Megabytes of text have millions of ids: they are written in pieces, since one call for all of
    them would hold up everybody.
    """
    ids = engine.tokenizer.encode(body.prompt, body.add_special_tokens)
    facts = engine.facts
    head = b'{"count":%d,"max_model_len":%d,"max_encoder_len":%d,"tokens":' % (
        len(ids),
        facts.max_model_len,
        facts.max_encoder_len,
    )
    if not body.return_token_strs:
        return b"".join([head, *_array(ids), b',"token_strs":null}'])
    return b"".join([head, *_array(ids), b',"token_strs":', *_array(map(engine.tokenizer.token, ids)), b"}"])


def _array(items: Iterable[object]) -> Iterator[bytes]:
    """A JSON array in pieces."""
    remaining, separator = iter(items), b"["
    while piece := list(islice(remaining, PIECE)):
        check()
        yield separator + to_json(piece)[1:-1]
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest), responses=BODY_ERRORS)
async def detokenize(request: Request, gateway: ThisGateway) -> DetokenizeReply:
    """The text of ids, special tokens included."""
    engine, body = await read(request, gateway, DetokenizeRequest)
    check_model(gateway, body.model)
    size = engine.facts.vocab_size
    if body.tokens and max(body.tokens) >= size:
        raise InvalidRequest(f"tokens: {max(body.tokens)} is not below the vocabulary size {size}", "tokens")
    async with admitted(request, gateway):
        text = await gateway.tokenizing.submit(len(body.tokens), engine.tokenizer.decode, body.tokens, False)
    return DetokenizeReply(prompt=text)
