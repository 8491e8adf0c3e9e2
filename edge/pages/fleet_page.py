"""A federated run as one HTML page: accuracy and loss per round, every device before and after it adapts, the worst
devices, bytes, privacy spent, and refused replies. Made from the run's JSON report (`federated.run.report`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from converter.report.html import document, facts, figure_cell, size_text, table, text_cell
from edge.pages.charts import COLOURS, EARLY, Pair, curves, dumbbells

__all__ = ["fleet_page"]

Report = Mapping[str, Any]
GROUPS = {"training": "devices that train", "held_out": "held-out devices"}
SHORT = {"training": "train", "held_out": "held out"}
STYLES = dict(zip(GROUPS, COLOURS, strict=False))
"""A group has the same colour in all charts."""
MOST = 60
"""The most devices that are drawn separately; of more, the best and the worst."""
DETAILS = 200
"""The most messages listed."""


def fleet_page(report: Report) -> str:
    """The whole page."""
    body = "\n".join(section(report) for section in SECTIONS)
    return document(f"{report['algorithm']} · {report['rounds']} rounds", body, f"run {report['run']}")


def _head(report: Report) -> str:
    why = report.get("gate")
    return (
        f"<h1>{escape(str(report['algorithm']))} over {report['devices']} devices</h1>"
        f'<p class="soft">{report["rounds"]} rounds from bundle {escape(str(report["bundle"])[:16])}</p>'
        + (f"<p>The model was not exported: {escape(why)}.</p>" if why else "")
        + "".join(
            f"<p>After round {int(each['after'])} the run returned to the model of round {int(each['to'])}.</p>"
            for each in report.get("returns", ())
        )
    )


def _facts(report: Report) -> str:
    pairs = []
    for group, words in GROUPS.items():
        told = _last(report, group, "perplexity")
        if told is not None:
            then, first = ("∞" if told[when] is None else f"{told[when]:.2f}" for when in ("after", "before"))
            pairs.append((then, f"perplexity on {words} after adapting; {first} before"))
        summary = _last(report, group)
        if summary is not None:
            before, after = summary["accuracy_before"], summary["accuracy_after"]
            for figure, of in (("mean", "mean accuracy on"), ("worst_decile", "worst tenth of")):
                if after[figure] is not None:
                    said = f"{of} {words} after adapting; {_share(before[figure])} before"
                    pairs.append((_share(after[figure]), said + (", with noise" if summary.get("noisy") else "")))
    every = [*report["rows"], *report.get("given_up", ())]  # totals contain the rounds that returns gave up
    rounds = max(1, len(every))
    pairs += [
        (size_text(report["bytes_up"] / rounds), "sent by all devices per round"),
        (size_text(report["bytes_down"] / rounds), "sent to all devices per round"),
        (f"{report['seconds']:.1f} s", "for all rounds"),
    ]
    spent = [row["epsilon"] for row in every if row.get("epsilon") is not None]
    if spent:
        covered = (report.get("privacy") or {}).get("covered", ["updates"])
        pairs.append((f"ε = {max(spent):.3g}", f"privacy spent by {' and '.join(covered)}"))
    return facts(pairs)


def _progress(report: Report) -> str:
    rows = report["rows"]
    numbers = [row["round"] for row in rows]
    seen = [group for group in GROUPS if any(_summary(row, group) is not None for row in rows)]
    accuracy = {
        f"{SHORT[group]}, {when}": [_mean(row, group, f"accuracy_{when}") for row in rows]
        for group in seen
        for when in ("before", "after")
    }
    styles = [STYLES[group] + early for group in seen for early in (EARLY, "")] or COLOURS
    charts = [
        curves("Accuracy, mean over devices", numbers, accuracy, _percent, styles=styles),
        curves("Training loss", numbers, {"mean over devices": [row["loss"] for row in rows]}),
        curves("KiB per round", numbers, {"from devices": [row["bytes_up"] / 1024 for row in rows],
                                        "to devices": [row["bytes_down"] / 1024 for row in rows]}, zero=True),
        curves("Privacy spent (ε)", numbers, {"ε so far": [row.get("epsilon") for row in rows]}, zero=True),
    ]  # fmt: skip
    return f'<h2>Results per round</h2><div class="charts two">{"".join(charts)}</div>'


def _devices(report: Report) -> str:
    pairs = []
    for group in GROUPS:
        found = _evaluation(report["rows"], group)
        pairs += [Pair(name, a, b, marked=group == "held_out") for name, (a, b) in (found or {}).items()]
    if not pairs:
        return ""
    pairs.sort(key=lambda pair: pair.after or 0.0)
    left_out = len(pairs) - MOST
    shown = pairs if left_out <= 0 else pairs[: MOST // 2] + pairs[-MOST // 2 :]
    note = "" if left_out <= 0 else f" The {left_out} devices in the middle are not shown."
    return (
        "<h2>Results per device</h2><p>Accuracy with the global model (hollow) and after the device has adapted to a "
        "few of its own examples (filled), worst first; the second colour marks held-out devices, which do not take "
        f"part in training, and a red line devices that are worse after it.{note}</p>"
        f'<div class="half">{dumbbells("Accuracy before and after adapting", shown, _percent)}</div>'
    )


def _fairness(report: Report) -> str:
    rows = []
    for group, words in GROUPS.items():
        summary = _last(report, group)
        if summary is not None:
            for when in ("before", "after"):
                accuracy, loss = summary[f"accuracy_{when}"], summary[f"loss_{when}"]
                none = "–" if summary.get("noisy") else "∞"
                figures = [
                    str(summary["devices"]),
                    "–" if summary.get("noisy") else str(summary.get("diverged", 0)),
                    *(_share(accuracy[which]) for which in ("mean", "worst_decile")),
                    *(none if loss[which] is None else f"{loss[which]:.3f}" for which in ("mean", "worst_decile")),
                ]
                rows.append([text_cell(words), text_cell(when), *map(figure_cell, figures)])
    if not rows:
        return ""
    heads = ("", "adapting", "#devices", "#diverged", "#accuracy", "#worst tenth", "#loss", "#worst tenth")
    return "<h2>Accuracy of the worst devices</h2>" + table(heads, rows)


def _refused(report: Report) -> str:
    surveys = [survey for row in report["rows"] for survey in (row.get("evaluation") or {}).values()]
    counted = {
        **{f"turned away: {reason}": count for reason, count in report["turned_away"].items()},
        **report["refused"],
        **{f"cut to limits.influence: {what}": count for what, count in report.get("limited", {}).items()},
        "lost with their aggregator": sum(row.get("lost_devices", 0) for row in report["rows"]),
        **{f"lost evaluation: {reason}": count for reason, count in report.get("lost_evaluations", {}).items()},
        "silent until the deadline": sum(max(0, row["silent"]) for row in report["rows"]),
        "diverged in an evaluation": sum(len(survey.get("diverged", ())) for survey in surveys),
    }
    rows = [(text_cell(reason), figure_cell(str(count))) for reason, count in sorted(counted.items()) if count]
    if not rows:
        return "<h2>Refused</h2><p>Nothing: every device that was asked answered in time with a valid reply.</p>"
    details = [*report.get("turned_away_details", ())]
    details += [line for part in (*report["rows"], *surveys) for line in part.get("details", [])]
    details += [f"{name}: diverged in an evaluation" for survey in surveys for name in survey.get("diverged", ())]
    listed = "".join(f"<li>{escape(line)}</li>" for line in details[:DETAILS])
    more = f"<details><summary>messages</summary><ul>{listed}</ul></details>" if details else ""
    return "<h2>Refused</h2>" + table(("reason", "#replies"), rows) + more


def _rounds(report: Report) -> str:
    rows = (
        (
            figure_cell(str(row["round"])),
            figure_cell(f"{row['answered']} of {row['asked']}"),
            figure_cell("" if row["loss"] is None else f"{row['loss']:.4f}"),
            figure_cell(size_text(row["bytes_up"])),
            figure_cell(size_text(row["bytes_down"])),
            figure_cell(f"{row['seconds']:.2f} s"),
            text_cell(_remark(row)),
        )
        for row in report["rows"]
    )
    heads = ("#round", "#answered", "#loss", "#from devices", "#to devices", "#time", "")
    return f"<details><summary>table of all rounds</summary>{table(heads, rows)}</details>"


def _remark(row: Mapping[str, Any]) -> str:
    if not row["counted"]:
        return "too few answers: repeated"
    return "" if row["asked"] else "nobody was drawn"


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{round(100 * value, 1) + 0.0:.1f} %"  # + 0.0: without the sign of a negative zero


def _percent(value: float) -> str:
    return f"{round(100 * value) + 0.0:.0f} %"


def _summary(row: Mapping[str, Any], group: str, what: str = "summary") -> Mapping[str, Any] | None:
    evaluation: Mapping[str, Any] = row.get("evaluation") or {}
    summary: Mapping[str, Any] | None = (evaluation.get(group) or {}).get(what)
    return summary


def _mean(row: Mapping[str, Any], group: str, figure: str) -> float | None:
    summary = _summary(row, group)
    value = None if summary is None else summary[figure]["mean"]
    return None if value is None else float(value)


def _last(report: Report, group: str, what: str = "summary") -> Mapping[str, Any] | None:
    found = [summary for row in report["rows"] if (summary := _summary(row, group, what)) is not None]
    return found[-1] if found else None


def _evaluation(rows: Sequence[Mapping[str, Any]], group: str) -> Mapping[str, Sequence[float]] | None:
    found = [row["evaluation"][group]["by_device"] for row in rows if _summary(row, group) is not None]
    return found[-1] if found else None


SECTIONS: tuple[Callable[[Report], str], ...] = (_head, _facts, _progress, _devices, _fairness, _refused, _rounds)
