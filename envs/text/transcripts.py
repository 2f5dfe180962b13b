"""Played episodes as one HTML page to browse, the failures first."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from envs.text.scores import Score
from jaxagent.text import Episode

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1e21; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
details { border: 1px solid #ddd; border-radius: 4px; margin: .4rem 0; padding: .3rem .8rem; }
details.lost { border-left: 4px solid #b3261e; }
details.won { border-left: 4px solid #2e7d32; }
summary { cursor: pointer; }
summary small { color: #666; }
ol { padding-left: 2.2rem; }
code { background: #f2f3f5; padding: 0 .3rem; }
code.refused { background: #fbe3e1; }
i { color: #666; }
pre { white-space: pre-wrap; font: inherit; }
"""


def write_transcripts(
    path: Path, title: str, episodes: Sequence[Episode], scores: dict[str, Score]
) -> None:
    """Writes the page; it needs no other file.

    Args:
        path: the file to write.
        title: its heading.
        episodes: what was played; they are shown lost before won, in their order otherwise.
        scores: the figures above the transcripts, by task type.
    """
    ordered = sorted(episodes, key=lambda episode: episode.won)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>",
        _table(scores),
        *map(_transcript, ordered),
        "</html>\n",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


def _table(scores: dict[str, Score]) -> str:
    rows = [
        f"<tr><td>{escape(kind)}<td>{s.won} / {s.games}<td>{100 * s.success:.1f} %"
        f"<td>{100 * s.success_low:.1f} – {100 * s.success_high:.1f} %<td>{s.mean_steps:.1f}"
        f"<td>{100 * s.inadmissible_share:.1f} %<td>{100 * s.repeated_share:.1f} %</tr>"
        for kind, s in scores.items()
    ]
    head = (
        "<tr><th>task type<th>won<th>success<th>95 % interval<th>steps"
        "<th>inadmissible<th>repeated</tr>"
    )
    return f"<table>{head}{''.join(rows)}</table>"


def _transcript(episode: Episode) -> str:
    state = "won" if episode.won else "lost"
    lines = [f"<pre>{escape(episode.observations[0])}</pre><ol>"]
    steps = zip(episode.subgoals, episode.commands, episode.valid, episode.observations[1:])
    for subgoal, command, valid, observation in steps:
        mark = "" if valid else " class='refused'"
        aim = f" <i>{escape(subgoal)}</i>" if subgoal else ""
        lines.append(f"<li><code{mark}>{escape(command)}</code>{aim}<br>{escape(observation)}")
    return (
        f"<details class='{state}'><summary>{state} in {len(episode.commands)}: "
        f"{escape(episode.task)} <small>{escape(episode.game)}</small></summary>"
        f"{''.join(lines)}</ol></details>"
    )
