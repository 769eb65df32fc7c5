"""`POST /tokenize` and `/detokenize`: the verifier's own tokenizer, as completions use it for the encoder."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field

from app.completions.fields import TokenIds
from app.completions.protocol import Model
from app.engine import InvalidRequest
from app.routes.parts import BODY_ERRORS, ThisGateway, body_schema, check_model, read

router = APIRouter(tags=["tokenizer"])


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


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest), responses=BODY_ERRORS)
async def tokenize(request: Request, gateway: ThisGateway) -> TokenizeReply:
    """Ids of a text."""
    engine, body = await read(request, gateway, TokenizeRequest)
    check_model(gateway, body.model)
    ids = await gateway.tokenizing.submit(engine.tokenizer.encode, body.prompt, body.add_special_tokens)
    return TokenizeReply(
        count=len(ids),
        max_model_len=engine.facts.max_model_len,
        max_encoder_len=engine.facts.max_encoder_len,
        tokens=ids,
        token_strs=[engine.tokenizer.token(i) for i in ids] if body.return_token_strs else None,
    )


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest), responses=BODY_ERRORS)
async def detokenize(request: Request, gateway: ThisGateway) -> DetokenizeReply:
    """The text of ids, special tokens included."""
    engine, body = await read(request, gateway, DetokenizeRequest)
    check_model(gateway, body.model)
    size = engine.facts.vocab_size
    if body.tokens and max(body.tokens) >= size:
        raise InvalidRequest(f"tokens: {max(body.tokens)} is not below the vocabulary size {size}", "tokens")
    return DetokenizeReply(prompt=engine.tokenizer.decode(body.tokens, False))
