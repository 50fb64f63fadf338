"""What is read off a request body before anything is known of it."""

from typing import Any

import orjson
import pytest

from gateway.measure import Measured, measure

PICTURE = "data:image/png;base64," + "A" * 40_000
SOUND = "A" * 100_000


def of(body: dict[str, Any], **options: bool) -> Measured:
    return measure(body, len(orjson.dumps(body)), **options)


def chat(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": one} for one in content], **fields}


def test_text_is_the_whole_body_with_tools_and_schemas() -> None:
    body = chat("hello", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    measured = of(body)
    assert measured == Measured(text_bytes=len(orjson.dumps(body)))
    assert measured.text_bytes > of(chat("hello")).text_bytes + 60


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "high"}},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {"data": PICTURE}}]},
    ],
    ids=lambda part: str(part["type"]),
)
def test_a_picture_counts_as_one_and_its_bytes_do_not(part: dict[str, Any]) -> None:
    with_picture = of(chat([{"type": "text", "text": "what is this?"}, part]))
    assert with_picture.images == 1
    assert with_picture.text_bytes < 300


def test_a_linked_picture_counts_and_its_address_is_text() -> None:
    measured = of(chat([{"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}]))
    assert measured.images == 1
    assert measured.text_bytes > 100


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": SOUND}},
        {"type": "input_file", "file_data": SOUND},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": SOUND}},
    ],
    ids=lambda part: str(part["type"]),
)
def test_other_attachments_count_by_their_size(part: dict[str, Any]) -> None:
    measured = of(chat([part]))
    assert measured.images == 2  # 100,000 bytes: two started pieces of 64 KiB
    assert measured.text_bytes < 300


def test_a_document_given_as_text_is_text() -> None:
    measured = of(chat([{"type": "document", "source": {"type": "text", "data": "word " * 1000}}]))
    assert measured.images == 0
    assert measured.text_bytes > 5000


def test_pictures_in_responses_input_and_tool_output() -> None:
    picture = {"type": "input_image", "image_url": PICTURE}
    body = {
        "model": "m",
        "input": [
            {"role": "user", "content": [picture]},
            {"type": "function_call_output", "call_id": "c", "output": [picture]},
        ],
    }
    measured = of(body)
    assert measured.images == 2
    assert measured.text_bytes < 300


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, None),
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 50, "max_tokens": 100}, 50),
        ({"max_output_tokens": 70}, 70),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": None}, None),
        ({"max_tokens": "100"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
    ],
)
def test_the_cap(fields: dict[str, Any], cap: int | None) -> None:
    assert of(chat("hello", **fields)).output_cap == cap


def test_several_answers() -> None:
    assert of(chat("hello", n=3)).n == 3
    assert of({"model": "m", "prompt": "a", "n": 2, "best_of": 5}).n == 5
    assert of(chat("hello", n="3")).n == 1


def test_token_ids_are_counted_exactly() -> None:
    assert of({"model": "m", "prompt": [5, 6, 7]}).known_tokens == 3
    assert of({"model": "m", "prompt": [[5, 6, 7], [8]]}).known_tokens == 4
    assert of({"model": "m", "prompt": "text"}).known_tokens is None
    assert of({"model": "m", "prompt": ["a", "b"]}).known_tokens is None


def test_embeddings_have_no_output() -> None:
    measured = of({"model": "m", "input": ["a", "b"]}, generates=False)
    assert (measured.output_cap, measured.known_tokens) == (0, None)


@pytest.mark.parametrize("messages", [None, 3, [None, 3, "x"], [{"content": [None, 3, {"type": 4}]}], [{"content": 1}]])
def test_nonsense_is_passed_over(messages: Any) -> None:
    assert of({"model": "m", "messages": messages}).images == 0


@pytest.mark.parametrize("inner", [None, 3, [], "x", {"url": 3}, {}])
def test_a_malformed_picture_is_still_one(inner: Any) -> None:
    assert of(chat([{"type": "image_url", "image_url": inner}])).images == 1
