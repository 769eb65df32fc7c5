"""`GET /`: the live page, static files of `app/page`.

It needs no key, since it holds nothing that the server knows: what it shows it asks the API for, with the key that its
user gives it.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[1] / "page"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_INDEX = (FOLDER / "index.html").read_text(encoding="utf-8")
_FILES = StaticFiles(directory=FOLDER)


@router.get("/")
async def get_page(request: Request) -> Response:
    """The page. Its paths are relative; behind a proxy's prefix a base says of what, whether `/` closes it or not."""
    prefix = request.scope.get("root_path", "").rstrip("/")
    base = f'<base href="{escape(prefix)}/">' if prefix else ""
    return HTMLResponse(_INDEX.replace("<!-- base -->", base), headers=HEADERS)


@router.get("/favicon.ico")
async def get_icon(request: Request) -> Response:
    """The page's icon where a browser looks for one by itself, beside `/docs` and `/metrics`."""
    return await get_file("icon.svg", request)


@router.get("/page/{name}")
async def get_file(name: str, request: Request) -> Response:
    """One of its files; 304 where the browser has it already."""
    response = await _FILES.get_response(name, request.scope)
    response.headers.update(HEADERS)
    return response
