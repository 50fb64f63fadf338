"""Who sends what when."""

from collections import Counter, defaultdict

import pytest

from gateway.replay.plan import Options, plan
from gateway.replay.shapes import Request, invent

TENANTS = ["a", "b", "c", "d"]


def test_tenants_send_by_zipf() -> None:
    sends = plan(invent("azure-conv", 6000), TENANTS, Options(zipf=1.0))
    counts = Counter(send.tenant for send in sends)
    whole = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for rank, tenant in enumerate(TENANTS, 1):
        assert counts[tenant] / 6000 == pytest.approx(1 / rank / whole, abs=0.02)


def test_equal_shares_at_exponent_zero() -> None:
    counts = Counter(send.tenant for send in plan(invent("azure-conv", 4000), TENANTS, Options(zipf=0.0)))
    assert all(count == pytest.approx(1000, rel=0.1) for count in counts.values())


def test_a_conversation_stays_with_its_tenant() -> None:
    sends = plan(invent("mooncake", 500), TENANTS, Options())
    owners: dict[int, set[str]] = defaultdict(set)
    for send in sends:
        for block in send.request.blocks[1:]:
            owners[block].add(send.tenant)
    assert all(len(tenants) == 1 for tenants in owners.values())
    assert len({send.tenant for send in sends}) == 4


def test_speed_divides_the_times_and_scale_multiplies_the_lengths() -> None:
    (send,) = plan([Request(60.0, 1000, 200)], ["a"], Options(speed=10, scale=0.1))
    assert (send.at, send.prompt_tokens, send.output_tokens) == (6.0, 100, 20)
    (least,) = plan([Request(0.0, 3, 2)], ["a"], Options(scale=0.1))
    assert (least.prompt_tokens, least.output_tokens) == (1, 1)


def test_lengths_are_cut_after_scaling() -> None:
    options = Options(scale=0.5, max_prompt=100, max_output=10)
    long, short = plan([Request(0.0, 1000, 200, (0, 1)), Request(0.0, 100, 10)], ["a"], options)
    assert (long.prompt_tokens, long.output_tokens, long.request.prompt_tokens) == (100, 10, 200)
    assert (short.prompt_tokens, short.output_tokens, short.request.prompt_tokens) == (50, 5, 100)


def test_the_share_asked_for_is_abandoned_somewhere_in_the_answer() -> None:
    sends = plan(invent("azure-conv", 4000), TENANTS, Options(cancel=0.1))
    abandoned = [send for send in sends if send.cancel_after is not None]
    assert len(abandoned) == pytest.approx(400, rel=0.2)
    shares = [send.cancel_after / send.output_tokens for send in abandoned if send.cancel_after is not None]
    assert all(0 < share <= 1 for share in shares)
    assert sum(shares) / len(shares) == pytest.approx(0.5, abs=0.06)
    assert all(send.cancel_after is None for send in plan(invent("azure-conv", 100), TENANTS, Options()))


def test_cancelling_changes_neither_tenants_nor_lengths() -> None:
    rows = invent("azure-conv", 200)
    kept = plan(rows, TENANTS, Options())
    some = plan(rows, TENANTS, Options(cancel=0.5))
    assert [send.tenant for send in kept] == [send.tenant for send in some]
    assert kept == plan(rows, TENANTS, Options())


@pytest.mark.parametrize("options", [Options(speed=0), Options(scale=-1), Options(cancel=1.5)])
def test_options_without_sense_are_refused(options: Options) -> None:
    with pytest.raises(ValueError):
        plan([Request(0.0, 1, 1)], ["a"], options)


def test_nobody_to_send_as() -> None:
    with pytest.raises(ValueError, match="no tenant"):
        plan([Request(0.0, 1, 1)], [], Options())
