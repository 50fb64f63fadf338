"""Reading traces, inventing them, and the text made for them."""

from collections import Counter
from pathlib import Path

import pytest

from gateway.replay.prompts import Prompts
from gateway.replay.shapes import NAMES, Request, invent
from gateway.replay.traces import BadTrace, read

AZURE = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
MOONCAKE = '{"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 7, 9]}\n'


def test_azure_rows_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE + "2023-11-16 18:17:05.0319600,3180,8\r\n", encoding="utf-8")
    first, second = read(str(path))
    assert first == Request(0.0, 4808, 10)
    assert (second.prompt_tokens, second.output_tokens) == (3180, 8)
    assert second.at == pytest.approx(1.052)
    assert len(read(str(path), 1)) == 1


def test_mooncake_rows_carry_their_blocks(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE.replace("3000", "9000") + "\n" + MOONCAKE)  # out of order, with an empty line
    assert read(str(path)) == [Request(0.0, 1100, 52, (0, 7, 9)), Request(6.0, 1100, 52, (0, 7, 9))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n", r"a.csv:1: no column GeneratedTokens"),
        ("a.csv", AZURE + "yesterday,1,1\n", r"a.csv:3: Invalid isoformat"),
        ("a.csv", AZURE + "2023-11-16 18:17:05,many,1\n", r"a.csv:3: invalid literal"),
        ("a.csv", AZURE.splitlines()[0], r"a.csv: holds no requests"),
        ("a.jsonl", MOONCAKE + "{}\n", r"a.jsonl:2: no field timestamp"),
        ("a.jsonl", MOONCAKE + "{\n", r"a.jsonl:2: "),
        ("a.jsonl", MOONCAKE + "[1]\n", r"a.jsonl:2: "),
    ],
)
def test_a_bad_trace_names_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadTrace, match=message):
        read(str(path))


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(BadTrace, match="no such file, and not one of azure-code, azure-conv, mooncake"):
        read("azure")


# from the published files: mean prompt, median prompt, mean output, median output (tokens)
PUBLISHED = {
    "azure-code": (2048, 1469, 28, 13),
    "azure-conv": (1155, 1020, 211, 129),
    "mooncake": (12035, 6909, 343, 350),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_invented_trace_has_the_lengths_of_the_published_one(name: str) -> None:
    rows = invent(name, 8000)
    prompts = sorted(row.prompt_tokens for row in rows)
    outputs = sorted(row.output_tokens for row in rows)
    found = (sum(prompts) / 8000, prompts[4000], sum(outputs) / 8000, outputs[4000])
    assert found == pytest.approx(PUBLISHED[name], rel=0.08)


def test_invented_arrivals_are_as_many_a_second() -> None:
    assert 8000 / invent("azure-conv", 8000)[-1].at == pytest.approx(5.53, rel=0.1)
    assert 8000 / invent("mooncake", 8000)[-1].at == pytest.approx(3.4, rel=0.1)


def test_invented_conversations_share_a_third_of_their_blocks() -> None:
    seen: set[int] = set()
    shared = total = 0
    for row in invent("mooncake", 8000):
        assert len(row.blocks) == -(-row.prompt_tokens // 512)
        assert row.blocks[0] == 0
        known = next((index for index, block in enumerate(row.blocks) if block not in seen), len(row.blocks))
        assert seen.isdisjoint(row.blocks[known:])  # only prefixes are shared
        shared += known
        total += len(row.blocks)
        seen.update(row.blocks)
    assert shared / total == pytest.approx(0.35, abs=0.05)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert invent("mooncake", 50) == invent("mooncake", 50)
    assert invent("azure-code", 50) != invent("azure-code", 50, seed=2)
    assert invent("azure-code", 50)[:20] == invent("azure-code", 20)


@pytest.mark.parametrize("bytes_per_token", [4.0, 3.3])
def test_text_is_as_long_as_its_tokens(bytes_per_token: float) -> None:
    prompts = Prompts(bytes_per_token)
    for index, row in enumerate([*invent("azure-code", 50), *invent("mooncake", 30), Request(0, 1, 1)]):
        text = prompts.text(index, row)
        assert len(text) == round(row.prompt_tokens * bytes_per_token)
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set('"\\')


def test_text_leaves_room_for_the_chat_template_and_scales() -> None:
    assert len(Prompts(4.0, overhead_tokens=2).text(0, Request(0, 100, 1))) == 392
    assert len(Prompts(4.0, overhead_tokens=2, scale=0.1).text(0, Request(0, 100, 1))) == 32
    assert len(Prompts(4.0, overhead_tokens=2).text(0, Request(0, 1, 1))) == 1


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_prompts_share_exactly_the_blocks_they_have_in_common(scale: float) -> None:
    block = round(2048 * scale)
    prompts = Prompts(4.0, scale=scale)
    first = prompts.text(0, Request(0, 1500, 1, (0, 1, 2)))
    second = prompts.text(1, Request(0, 1536, 1, (0, 1, 3)))
    common = next(index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    assert 2 * block <= common < 2 * block + 4
    assert Prompts(4.0, scale=scale).text(9, Request(0, 1500, 1, (0, 1, 2))) == first


def test_texts_without_blocks_share_no_prefix() -> None:
    prompts = Prompts(4.0)
    starts = Counter(prompts.text(index, Request(0, 100, 1))[:16] for index in range(200))
    assert max(starts.values()) == 1
