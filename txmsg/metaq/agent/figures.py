"""The metrics of an agent. Its sources work on threads, and this module only reads the values that they have
recorded.
"""

from __future__ import annotations

from txmsg.metaq.agent.agent import SILENCE_S_MAX, Agent
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures


def dead(agent: Agent) -> str:
    """Return the reason why an agent should be restarted: the threads of all its sources hang. Empty if they do not.

    Not if only some hang: a source that reads a mount which does not answer would hang after a restart,
    too.
    """
    hanging = [name for name in agent.sources if agent.silence_s(name) > SILENCE_S_MAX]
    if not hanging or len(hanging) < len(agent.sources):
        return ""
    return f"nothing was heard of the threads of its sources {', '.join(hanging)} for {SILENCE_S_MAX:.0f} s"


def figures_of(agent: Agent) -> Figures:
    """Return all metrics of an agent."""
    figures = Figures(ExportingProcess.AGENT)
    figures.put("txmsg_ready", 1)
    for name, source in agent.sources.items():
        outlet = source.outlet
        figures.put("txmsg_agent_lines_total", source.counts.lines, source=name)
        figures.put("txmsg_agent_read_bytes_total", source.counts.bytes, source=name)
        figures.put("txmsg_agent_files", source.files(), source=name)
        figures.put("txmsg_agent_unread_bytes", source.unread_bytes(), source=name)
        figures.put("txmsg_agent_spool_bytes", outlet.waiting_size_bytes(), source=name)
        figures.put("txmsg_agent_spool_used_ratio", outlet.used_ratio(), source=name)
        figures.put("txmsg_agent_held", bool(agent.held(name)), source=name)
        figures.put("txmsg_agent_unreadable_files", len(source.troubles()), source=name)
        figures.put("txmsg_agent_paused", source.config.paused, source=name)
        figures.put("txmsg_agent_truncations_total", source.truncations(), source=name)
        figures.put("txmsg_agent_lost_bytes_total", source.lost_bytes(), source=name)
    return figures
