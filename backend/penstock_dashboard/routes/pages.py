"""The built frontend. The files are listed once at the start, so no path from outside ever reaches the file
system.
"""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

STATIC = Path(__file__).parent.parent / "static"
MEDIA = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
"""Kinds of files that are worth compressing."""

NOT_BUILT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Penstock</title></head>
<body><h1>Penstock</h1>
<p>The backend runs, but the pages were not built. From a clone of the repository:</p>
<pre>cd frontend &amp;&amp; npm ci &amp;&amp; npm run build</pre>
<p>Then load this page again.
The API is there already: see <a href="api/openapi.json">its description</a>.</p>
</body></html>
"""


def make_router(prefix: str, static: Path = STATIC) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files = {path.relative_to(static).as_posix(): path for path in static.rglob("*") if path.is_file()}

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        if prefix and request.scope.get("penstock.bare_prefix"):
            return RedirectResponse(f"{prefix}/", 308)  # without the slash, relative addresses would miss the prefix
        page = static / "index.html"
        if not page.is_file():  # looked at anew, so that a build is seen without a restart
            return HTMLResponse(NOT_BUILT)
        return _file(request, page, "no-cache")

    @router.api_route("/assets/{name:path}", methods=["GET", "HEAD"])
    async def asset(request: Request, name: str) -> Response:
        path = _lookup(files, static, f"assets/{name}")
        # Vite puts a digest into the names, so what was fetched once never changes.
        return _file(request, path, "public, max-age=31536000, immutable")

    @router.api_route("/{name}", methods=["GET", "HEAD"])
    async def file(request: Request, name: str) -> Response:
        return _file(request, _lookup(files, static, name), "no-cache")

    return router


def _lookup(files: dict[str, Path], static: Path, name: str) -> Path | None:
    if name not in files and static.is_dir():
        files.update({p.relative_to(static).as_posix(): p for p in static.rglob("*") if p.is_file()})
    path = files.get(name)
    return path if path is not None and path.is_file() else None


def _file(request: Request, path: Path | None, cache: str) -> Response:
    if path is None:
        from starlette.exceptions import HTTPException

        raise HTTPException(404, "There is no such file.")
    headers = {"cache-control": cache, "vary": "accept-encoding"}
    if path.suffix in MEDIA and "gzip" in request.headers.get("accept-encoding", ""):
        body = _compressed(path, path.stat().st_mtime_ns)
        return Response(body, headers={**headers, "content-encoding": "gzip"}, media_type=MEDIA[path.suffix])
    return FileResponse(path, headers=headers)


@functools.lru_cache(64)
def _compressed(path: Path, _changed: int) -> bytes:
    """A file as it travels, made once: there are a few, and they are small."""
    return gzip.compress(path.read_bytes(), 9, mtime=0)
