"""The serving figures of a whole model, as sentences, tables, a chart and data for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnbench.analysis.compare.answer import answer as answer_of_attention
from attnbench.analysis.compare.answer import price_text, ratio_text
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.money import worth_below
from attnbench.core.formats import digits, duration, share
from attnbench.core.groups import grouped
from attnbench.core.sizes import format_size
from attnbench.core.text import capitalized, count, listed
from attnbench.render.document import BandLine, Column, LineChart, Table
from attnbench.results.case_names import NOTHING
from attnbench.results.disturbed import doubt

if TYPE_CHECKING:
    from attnbench.analysis.compare.requests import Requests
    from attnbench.analysis.compare.serving import Served, Serving

LEFT_OUT = "norms, sampling, the host, and waiting for a place in the batch"
INTERPOLATED, BEYOND, LIMIT = "~", "?", "!"
NOTE = (
    "A user's tokens/s: from the first token on. A GPU's: generated tokens over all of the time, prompts included. "
    f"{INTERPOLATED}: attention of decode is interpolated, or measured with other heads; "
    f"{BEYOND}: scaled from batches or lengths "
    f"that are all smaller, or all larger; {LIMIT}: a limit, as no step was measured. A batch is left out where "
    "no near batch was measured, or where the memory does not hold it."
)


def sentences(c: Comparison) -> list[str]:
    """Return the answer for a whole model (speed, money, energy) as sentences; empty without requests in words."""
    found = c.serving
    if not found:
        return []
    if not found.found:
        return [f"{capitalized(text)}." for text in found.reasons]
    return [*filter(None, [_speed(c, found), _made_of(found), _money(c, found), _energy(found)])]


def _speed(c: Comparison, found: Serving) -> str:
    asked = found.asked
    each = [_of_machine(c, found, label) for label in found.found]
    on = f" on {count(asked.tp, 'device')}" if asked.tp > 1 else ""
    size = f"{format_size(asked.seqlen_in)} in, {format_size(asked.seqlen_out)} out, batch {asked.batch}"
    without = "".join(f"; {text}" for text in found.reasons)
    return f"The whole of {asked.model.name}{on} ({size}) gives {'; '.join(each)}{without}."


def _of_machine(c: Comparison, found: Serving, label: str) -> str:
    one, ratio = found.found[label], found.ratio(label, c.reference.label)
    than = "" if label == c.reference.label or not ratio else f", {ratio_text(ratio)} of {c.reference.label}"
    ends, most, least = ("", "at most ", "at least ") if one.at_most else (f" ({_ends(one)})", "", "")
    return (
        f"{most}{_rate(one.tokens_a_second)} tokens/s{ends} on {label}{than}, with {least}{duration(one.first_token)} "
        f"to the first token and {duration(one.decode.seconds)} for each more"
    )


def _made_of(found: Serving) -> str:
    """Return the measured cases and steps behind the figures, and the parts that they leave out."""
    each, tp = found.found, found.asked.tp
    said = ["Attention is " + ", ".join(f"{share(one.attention)} on {label}" for label, one in each.items())]
    said += _by_machine({label: "; ".join(_stand_ins(one)) for label, one in each.items()})
    rests = {
        label: [f"in {phase} by {of.rate.said}" for phase, of in one.phases.items()] for label, one in each.items()
    }
    rest = "; ".join(f"on {label} {' and '.join(phases)}" for label, phases in rests.items())
    said += [f"the rest of the time is known {rest}", *_experts(found.asked)]
    buses = {label: f"{one.bus.said} ({share(one.sending)} of the time)" for label, one in each.items() if one.bus}
    if buses:
        by = "; ".join(f"on {label} {text}" for label, text in buses.items())
        said.append(f"two all-reduces a layer take at least the time of their bytes, without latency: {by}")
    unknown = [label for label, one in each.items() if tp > 1 and not one.bus]
    devices = f"the time in which the {tp} devices send data to each other on {listed(unknown)}, " if unknown else ""
    return f"{'; '.join(said)}. Left out: {devices}{LEFT_OUT}."


def _experts(asked: Requests) -> list[str]:
    """Return the assumption on experts; empty for a model without them."""
    model, step = asked.model, asked.step
    if not step or not step.experts:
        return []
    fewer = {f"{model.expert_bits:g} bits for experts": model.expert_bits, f"{model.bits:g} for the rest": model.bits}
    weights = " and ".join(text for text, bits in fewer.items() if bits != 16)
    published = f"; weights have {weights}, products the rate of bf16" if weights else ""
    return [
        f"each token is assumed to take {step.taken} of {step.experts} experts at random, so that a step of decode "
        f"reads {digits(step.experts_of(asked.batch))} of a layer's{published}"
    ]


def _by_machine(each: dict[str, str]) -> list[str]:
    """Return each distinct text once, with its machines if the texts differ; without empty ones."""
    texts = grouped(each, each.__getitem__)
    alone = len(texts) == 1
    return [text if alone else f"{text} (on {listed(labels)})" for text, labels in texts.items() if text]


def _stand_ins(one: Served) -> tuple[str, ...]:
    return (*one.prefill.stands_in, *one.decode.stands_in)


def _money(c: Comparison, found: Serving) -> str:
    """Return the cost of a million tokens and the break-even prices; "" without prices of time."""
    costs = [f"{text} on {label}" for label in found.found if (text := _cost(c, found.found[label]))]
    if not costs:
        return ""
    energy = ", with energy at the power limit where power was not measured" if c.energy else ""
    said = [f"A million generated tokens cost {listed(costs)}{energy}"]
    home = c.offer(c.reference.label)
    for label in found.found:
        ratio, offer = found.ratio(label, c.reference.label), c.offer(label)
        if ratio and home and offer and label != c.reference.label:
            worth = worth_below(ratio, home, offer)
            price = price_text(offer.price, worth)
            said.append(f"{label} is worth it below {price}, if {c.reference.label} costs {home.price}")
    return f"{'; '.join(said)}."


def _cost(c: Comparison, one: Served) -> str:
    """Return the cost of a million tokens on a machine, with the interval; "" without a price of time."""
    offer, text = c.offer(one.machine.label), _cost_alone(c, one)
    if not offer or not text:
        return ""
    ends = one.interval(offer.million_tokens(one.device_seconds) or 0.0)
    return f"{text} ({' to '.join(map(offer.price.money, ends))})" if ends else f"at least {text}"


def _cost_alone(c: Comparison, one: Served) -> str:
    offer = c.offer(one.machine.label)
    cost = offer.million_tokens(one.device_seconds) if offer else None
    return offer.price.money(cost) if offer and cost is not None else ""


def _energy(found: Serving) -> str:
    each = {label: text for label, one in found.found.items() if (text := _kilowatt_hours(one))}
    if not each:
        return ""
    texts = listed(f"{text} kWh on {label}" for label, text in each.items())
    known = [f"on {label} {text}" for label in each if (text := _powers(found.found[label]))]
    low = f"the lower figure by the power of attention without pauses ({'; '.join(known)}), the upper " if known else ""
    return f"A million generated tokens take {texts}: {low}by the power limit."


def _powers(one: Served) -> str:
    """Return the power of attention in each phase: "667 W in 43 prefills and 239 W in 1 decode"; "" if unknown."""
    if one.kilowatt_hours()[0] is None:
        return ""
    each = ((phase, sorted(one.watts(phase))) for phase in one.phases)
    return listed(f"{watts[len(watts) // 2]:.0f} W in {count(len(watts), phase)}" for phase, watts in each)


def _kilowatt_hours(one: Served) -> str:
    low, high = one.kilowatt_hours()
    if high is None:
        return ""
    return f"{digits(low)} to {digits(high)}" if low else f"at most {digits(high)}"


def _rate(tokens: float) -> str:
    return f"{float(f'{tokens:.3g}'):,.0f}" if tokens >= 100 else digits(tokens)


def _ends(one: Served) -> str:
    ends = one.interval(one.tokens_a_second)
    return " to ".join(map(_rate, ends)) if ends else NOTHING


# ---- Tables.


def tables(c: Comparison) -> list[Table]:
    """Return the figures by machine and the curve over the batch; empty without requests in words."""
    found = c.serving
    if not found or not found.curves:
        return []
    return [*([_by_figure(c, found)] if found.found else []), _curve(c, found)]


def _by_figure(c: Comparison, found: Serving) -> Table:
    """Return the figures of the requests, a row for each machine."""
    headings = ["tokens/s", "95 %", "first token", "per token"]
    if any(_cost(c, one) for one in found.found.values()):
        headings.append("a million tokens")
    headings.append("kWh")
    rows = []
    for label, one in found.found.items():
        texts = [_rate(one.tokens_a_second), _ends(one), duration(one.first_token), duration(one.decode.seconds)]
        if "a million tokens" in headings:
            texts.append(_cost_alone(c, one) or NOTHING)
        rows.append((label, *texts, _kilowatt_hours(one) or NOTHING))
    columns = (Column("machine"), *(Column(heading, "right", wrap=False) for heading in headings))
    note = "Time per token: of generation at the mean length. kWh: of a million generated tokens."
    return Table("serving", columns, tuple(rows), title=f"Whole model: {found.asked.name}", note=note)


def _curve(c: Comparison, found: Serving) -> Table:
    """Return tokens a second per user and per GPU, by batch, a column for each machine."""
    labels = [*found.curves]
    by_batch = {label: {one.asked.batch: one for one in found.curves[label]} for label in labels}
    batches = sorted({batch for own in by_batch.values() for batch in own})
    priced = any(_cost_alone(c, one) for own in by_batch.values() for one in own.values())
    what = "Tokens/s a user / a GPU" + (" / cost of a million tokens" if priced else "")
    rows = tuple((str(batch), *(_point(c, by_batch[label].get(batch)) for label in labels)) for batch in batches)
    columns = (Column("batch", "right"), *(Column(label, "right", wrap=False) for label in labels))
    return Table("interactivity", columns, rows, title="Batch against interactivity", note=f"{what}. {NOTE}")


def _point(c: Comparison, one: Served | None) -> str:
    if one is None:
        return NOTHING
    texts = [_rate(one.of_a_user), _rate(one.of_a_gpu), _cost_alone(c, one)]
    return " / ".join(filter(None, texts)) + _mark(one)


def _mark(one: Served) -> str:
    return LIMIT if one.at_most else BEYOND if one.decode.beyond else "" if one.decode.measured else INTERPOLATED


# ---- A page, and other programs.


def charts(c: Comparison) -> list[LineChart]:
    """Return the chart of tokens a second per GPU over tokens a second per user, a line for each machine."""
    found = c.serving
    if not found or not found.curves:
        return []
    asked, tp = found.asked, f", tp {found.asked.tp}" if found.asked.tp > 1 else ""
    size = f"{format_size(asked.seqlen_in)} in, {asked.seqlen_out} out"
    return [
        LineChart(
            "interactivity-chart",
            f"Batch against interactivity: {asked.model.name}{tp}, {size}",
            f"Above and to the right is better. At each point its batch; bands: 95 % interval. {NOTE}",
            "generated tokens/s a user",
            "generated tokens/s a GPU",
            tuple(_line(label, own) for label, own in found.curves.items()),
        )
    ]


def _line(label: str, own: Sequence[Served]) -> BandLine:
    points = ((one.of_a_user, one.of_a_gpu, *(one.interval(one.of_a_gpu) or 2 * (one.of_a_gpu,))) for one in own)
    return BandLine(label, tuple(points), tuple(f"{one.asked.batch}{_mark(one)}" for one in own))


def data(c: Comparison) -> dict[str, Any] | None:
    """Return the figures for JSON: seconds, tokens a second on all devices, kWh and cost of a million tokens."""
    found = c.serving
    if not found:
        return None
    return {
        "model": found.asked.model.name,
        "tp": found.asked.tp,
        "machines": [_row(c, one) for one in found.found.values()],
        "without": dict(found.without),
        "curve": [_row(c, one) for own in found.curves.values() for one in own],
        "steps": [*found.shares],
    }


def _row(c: Comparison, one: Served) -> dict[str, Any]:
    offer, (low, high) = c.offer(one.machine.label), one.interval(one.tokens_a_second) or (None, None)
    least, most = one.kilowatt_hours()
    return {
        "name": one.machine.label,
        "batch": one.asked.batch,
        "tokens_a_second": one.tokens_a_second,
        "tokens_a_second_low": low,
        "tokens_a_second_high": high,
        "first_token": one.first_token,
        "token": one.decode.seconds,
        "tokens_a_second_of_a_user": one.of_a_user,
        "tokens_a_second_of_a_gpu": one.of_a_gpu,
        "attention": one.attention,
        "million_tokens": offer.million_tokens(one.device_seconds) if offer else None,
        "kwh_of_attention_power": least,
        "kwh_at_power_limit": most,
        "interpolated": not one.decode.measured,
        "beyond": one.decode.beyond,
        "at_most": one.at_most,
        "backends": {phase: of.backends for phase, of in one.phases.items()},
        "products": {phase: of.rate.said for phase, of in one.phases.items()},
        "sending": one.sending,
        "bus": one.bus.value if one.bus else None,
        "stands_in": _stand_ins(one),
    }


def answer(c: Comparison) -> list[str]:
    """Return the answer of a comparison; with requests in words, for the whole model and then for attention."""
    if not c.serving or not c.serving.found:
        return [*answer_of_attention(c), *sentences(c)]
    ratios = [f"{of.label} {ratio_text(c.main.ratio(of.label))}" for of in c.others if c.main.ratio(of.label)]
    alone = f"Attention alone, {c.main.pace}: {', '.join(ratios)} as fast as {c.reference.label}."
    disturbed = doubt([file.run for machine in c.machines for file in machine.files])
    return [*disturbed, *sentences(c), *([alone] if ratios else [])]
