"""The files of the page: served whole, of the right type, closed to anything from elsewhere, open without a key."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from tests.serve.harness import Running, problem, running

from headstart.engine.engine import Engine

FOLDER = files("headstart.serve").joinpath("page")
NAMES = sorted(file.name for file in FOLDER.iterdir())
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def path(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served(up: Running, name: str) -> None:
    reply = up.get(path(name))
    assert reply.status_code == 200
    assert reply.content == FOLDER.joinpath(name).read_bytes()
    assert reply.headers["content-type"].split(";")[0] == TYPES[name.rsplit(".")[-1]]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http" not in policy

    with up.client() as client:
        again = client.get(path(name), headers={"if-none-match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.head(path(name)).headers["content-length"] == str(len(reply.content))


def test_what_the_page_refers_to_is_there(up: Running) -> None:
    for name in NAMES:
        text = FOLDER.joinpath(name).read_text("utf-8")
        for found in re.findall(r'["\'](/page/[^"\']+)["\']', text):
            assert up.get(found).status_code == 200, (name, found)
        outside = set(re.findall(r"https?://[^\s\"']+", text))
        assert outside <= {"http://www.w3.org/2000/svg"}, name  # the name of SVG, which nothing loads


def test_other_paths_stay_unknown(up: Running) -> None:
    problem(up.get("/page/"), 404)
    problem(up.get("/page/../app.py"), 404)
    problem(up.post("/", {}), 405)


def test_the_page_needs_no_key_and_the_api_does(engine: Engine) -> None:
    with running(engine, keys=["a-key-of-mine"]) as up:
        assert up.get("/").status_code == 200
        problem(up.get("/v1/models"), 401)
