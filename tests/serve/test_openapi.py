"""The OpenAPI document: it describes what is there, and requests made up from it never meet a 500."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from tests.serve.harness import Running

EXAMPLES = 25


def test_it_names_routes_models_and_errors(up: Running) -> None:
    document = up.get("/openapi.json").json()
    assert set(document["paths"]) >= {
        "/v1/models",
        "/v1/models/{model}",
        "/v1/completions",
        "/v1/chat/completions",
        "/health",
        "/version",
    }
    for path, body, reply in (
        ("/v1/completions", "CompletionBody", "Completion"),
        ("/v1/chat/completions", "ChatBody", "ChatCompletion"),
    ):
        operation = document["paths"][path]["post"]
        assert _reference(operation["requestBody"]) == body
        assert _reference(operation["responses"]["200"]) == reply
        for status in ("400", "401", "404", "413", "429", "500", "503"):
            assert _reference(operation["responses"][status]) == "ErrorReply"
    assert document["components"]["schemas"]["ChatBody"]["additionalProperties"] is False


def _reference(part: dict[str, Any]) -> str:
    return str(part["content"]["application/json"]["schema"]["$ref"]).rpartition("/")[2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("path", ["/v1/models/{model}", "/v1/completions", "/v1/chat/completions"])
def test_made_up_requests_never_meet_a_500(up: Running, path: str, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{up.url}/openapi.json")
    [operation] = [found.ok() for found in document.get_all_operations() if found.ok().path == path]
    if operation.method == "get" and mode is GenerationMode.NEGATIVE:
        pytest.skip("every path is a valid one")
    seen: Counter[int] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @seed(1)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # there is one model, and a drawn name is never its
        response = case.call()
        case.validate_response(response, checks=[not_a_server_error])
        seen[response.status_code] += 1

    ask()
    assert seen[{"get": 404}.get(operation.method, 200 if mode is GenerationMode.POSITIVE else 400)], seen
    up.idle()
