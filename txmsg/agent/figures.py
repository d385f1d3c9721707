"""What an agent tells a scraper. Its sources work on threads, and this only reads what they have noted."""

from __future__ import annotations

import time
from typing import Final

from txmsg.agent.agent import Agent
from txmsg.metrics.catalogue import Process
from txmsg.metrics.figures import Figures

_SILENCE_S_MAX: Final = 120.0


def dead(agent: Agent) -> str:
    """Why an agent should be restarted: the thread of a source hangs. A round takes seconds."""
    for name, source in agent.sources.items():
        silence_s = time.monotonic() - source.stepped_at
        if silence_s > _SILENCE_S_MAX:
            return f"nothing was heard of the thread of source {name} for {silence_s:.0f} s"
    return ""


def figures_of(agent: Agent) -> Figures:
    """All figures of an agent."""
    figures = Figures(Process.AGENT)
    figures.put("txmsg_ready", 1)
    for name, source in agent.sources.items():
        spool = source.spool
        figures.put("txmsg_agent_lines_total", source.counts.lines, source=name)
        figures.put("txmsg_agent_read_bytes_total", source.counts.bytes, source=name)
        figures.put("txmsg_agent_files", source.files(), source=name)
        figures.put("txmsg_agent_unread_bytes", source.unread_bytes(), source=name)
        figures.put("txmsg_agent_spool_bytes", spool.waiting_size_bytes, source=name)
        figures.put("txmsg_agent_spool_used_ratio", spool.size_bytes / spool.size_bytes_max, source=name)
        figures.put("txmsg_agent_held", bool(source.failure), source=name)
        figures.put("txmsg_agent_paused", source.config.paused, source=name)
        figures.put("txmsg_agent_truncations_total", source.truncations(), source=name)
        figures.put("txmsg_agent_lost_bytes_total", source.lost_bytes(), source=name)
    return figures
