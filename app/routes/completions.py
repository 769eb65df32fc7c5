"""`POST /v1/completions`, and what OpenAI's other routes answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.completions import rules
from app.completions.answer import Answer
from app.completions.reply import Completion
from app.completions.request import CompletionRequest
from app.errors import BodyTooLarge, NotFound, Unauthorized, documented
from app.routes.parts import BODY_ERRORS, ThisGateway, body_schema, check_model, read

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    openapi_extra=body_schema(CompletionRequest),
    response_class=Response,
    responses={
        200: {
            "model": Completion,
            "description": "The completion; with stream: true, events with chunks of the same form.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **BODY_ERRORS,
    },
)
async def create_completion(request: Request, gateway: ThisGateway) -> Response:
    """Text for each prompt; the prompt is the encoder's input."""
    engine, body = await read(request, gateway, CompletionRequest)
    check_model(gateway, body.model)
    rules.check(body, engine.facts)
    return Answer(gateway, body, body.request_id or request.state.request_id)


@router.post("/v1/responses", responses=documented(Unauthorized, BodyTooLarge, NotFound))
@router.post("/v1/chat/completions", responses=documented(Unauthorized, BodyTooLarge, NotFound))
async def create_chat_completion() -> Response:
    """Refused: T5Gemma 2 is no chat model, and a made-up template would only look like one. 404 rather than 501, which
    OpenAI's clients send again and again.
    """
    raise NotFound("the served model has no chat template; send the text to POST /v1/completions")


@router.post("/v1/embeddings", responses=documented(Unauthorized, BodyTooLarge, NotFound))
async def create_embedding() -> Response:
    """Refused, for the model writes text."""
    raise NotFound("the served model gives no embeddings; it completes texts: POST /v1/completions")
