"""`txmsg group`: consumer groups of Notify or of a log, their positions and seeks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from txmsg.administration.groups import (
    CheckChange,
    GroupChange,
    GroupDeletion,
    GroupQuery,
    GroupQueue,
    GroupSettings,
    PoisonedKey,
    RetryQuery,
    Seek,
    SeekPlan,
)
from txmsg.administration.interface import Administration
from txmsg.errors import MisuseError, UnknownGroup, printable
from txmsg.ops.cli.connections import administered
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import (
    SECONDS,
    START,
    Decorator,
    contains_option,
    dry_run_option,
    duration,
    json_option,
    page_option,
    table_options,
    yes_option,
)
from txmsg.ops.cli.output import first_line, json_text, print_dry_run, print_facts, print_rows, say
from txmsg.runtime.durations import shown_duration
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.wire.start import Start

_DELAYS_MAX = 1000
_orderly_option: Decorator = click.option(
    "--orderly",
    type=click.Choice(["on", "off"]),
    help="RocketMQ's push consumers retry in place, in the order of ordering keys. They read this when they start.",
)


@click.group()
def group() -> None:
    """Show, alter, seek and delete consumer groups.

    A group is one of a Notify database (--broker) or of a MetaQ log (--log), and is created by the first request of a
    consumer. A producer group, whose half messages are checked, may have the same name.
    """


@group.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg group list\n  txmsg group list --log /var/lib/metaq")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Maximum number per page."
)
@contains_option
@page_option
@administered
@json_option
@table_options
def list_(*, limit: int, contains: str, page: str, administration: Administration, as_json: bool) -> None:
    """List consumer groups by name, with their lag."""
    found = administration.list_groups(GroupQuery(limit=limit, after=page, contains=contains))
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    if found.producer_groups:
        click.echo(f"producer groups: {', '.join(checks.group for checks in found.producer_groups)}")
    if not found.groups:
        click.echo("no consumer groups" + (" match" if contains else ""))
    else:
        print_rows(
            {**asdict(summary), "topics": ", ".join(lag.topic for lag in summary.topics)} for summary in found.groups
        )
    if found.next:
        say(f"only the first {limit}: go on with --page {found.next}", err=True)


@group.command(
    short_help="Show a group, its members and offsets.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group show mailer\n  txmsg group show dashboard --log metaq:7720",
)
@click.argument("name")
@administered
@json_option
def show(*, name: str, administration: Administration, as_json: bool) -> None:
    """Show a group: settings, members, offset and lag in each queue, retries, dead letters, pause.

    Members and pause are those that the answering broker knows. In a log, each queue has an owner.
    """
    checks = administration.show_checks(name)
    try:
        found = administration.show_group(name)
    except UnknownGroup:  # it only produces
        if checks is None:
            raise
        if as_json:
            click.echo(json_text({"group": name, "checks": asdict(checks)}))
        else:
            print_facts(asdict(checks))
        return
    values = _settings(name, found.settings) | {"paused": found.paused_s is not None}
    values |= {"checks": checks and asdict(checks), **asdict(found)}
    del values["settings"]
    if as_json:
        click.echo(json_text(values))
        return
    print_facts({name: value for name, value in values.items() if name not in {"members", "queues"}})
    for member in found.members:
        reads = f" reads {', '.join(member.topics)}, strategy {member.strategy}" if member.topics is not None else ""
        asked = f", asked {member.silent_s} s ago" if member.silent_s is not None else ""
        runs = f" on {member.host}, process {member.pid}, {member.release}" if member.host is not None else ""
        say(f" member {member.id}{runs}{reads}{asked}")
    _print_queues(found.queues)


@group.command(
    short_help="Show the lag of a group.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group lag mailer --watch 2s",
)
@click.argument("name")
@click.option("--watch", type=duration, metavar="DURATION", help="Refresh every DURATION, until Ctrl-C.")
@administered
@json_option
def lag(*, name: str, watch: float | None, administration: Administration, as_json: bool) -> None:
    """Show the lag of a group by topic and queue."""
    try:
        _show_lag(administration, name, as_json=as_json)
        while watch is not None:
            time.sleep(watch)
            _show_lag(administration, name, as_json=as_json)
    except KeyboardInterrupt:
        if watch is None:
            raise


def _show_lag(administration: Administration, name: str, *, as_json: bool) -> None:
    found = administration.show_group(name)
    if as_json:
        values = {"group": name, "waiting": found.waiting, "retrying": found.retrying, "dead": found.dead}
        click.echo(json_text({**values, "queues": [asdict(queue) for queue in found.queues]}))
    else:
        _print_queues(found.queues)


@group.command(
    short_help="Move a group to another position.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group seek mailer --topic user.registered --to 2026-05-01T10:00:00Z\n"
    "  txmsg group seek mailer --topic user.registered --to earliest --again\n"
    "  txmsg group seek dashboard --log /var/lib/metaq \\\n      --topic trade --queue 3 --to 1200",
)
@click.argument("name")
@click.option("--topic", required=True, metavar="NAME", help="Topic to seek in.")
@click.option(
    "--to",
    type=START,
    required=True,
    metavar="WHERE",
    help="Position: earliest, latest, a time (2026-05-01T10:00:00Z, or 2h for two hours ago), or an offset.",
)
@click.option("--queue", type=click.IntRange(0), help="Only in this queue; required with an offset.")
@click.option(
    "--again", is_flag=True, help="Run handlers under @idempotent again for redelivered messages. Notify only."
)
@click.option(
    "--dry-run", is_flag=True, help="Only show where the group would continue, and how many messages it would skip."
)
@administered
@yes_option
@json_option
def seek(
    *,
    name: str,
    topic: str,
    to: Start,
    queue: int | None,
    again: bool,
    dry_run: bool,
    administration: Administration,
    yes: bool,
    as_json: bool,
) -> None:
    """Seek: deliver the messages from a position on (again), and skip those before it. Consumers may run.

    Messages in flight may be redelivered. Retries and dead letters are not affected. Handlers under @idempotent skip
    messages they have handled, unless --again is given. Other groups are not affected. Asks first if it skips messages.
    """
    seek = Seek(group=name, topic=topic, to=to, queue=queue, again=again)
    if dry_run or not yes:
        # The same call as below, as a dry run: the question counts what this seek would skip, by the same code.
        plan = administration.seek(replace(seek, dry_run=True))
        if dry_run:
            _print_plan(name, plan, as_json=as_json)
            return
        if plan.skipped:
            question = f"skip up to {plan.skipped} messages of {topic} that group {name} has not processed, for good?"
            click.confirm(printable(question), abort=True, err=as_json)
    queues = administration.seek(seek).queues
    if as_json:
        click.echo(json_text({"group": name, "queues": [asdict(state) for state in queues]}))
    else:
        _print_queues(queues)


def _print_plan(name: str, plan: SeekPlan, *, as_json: bool) -> None:
    queues = [{**asdict(queue), "to": to} for queue, to in zip(plan.queues, plan.to, strict=True)]
    if as_json:
        click.echo(json_text({"group": name, "skipped": plan.skipped, "repeated": plan.repeated, "queues": queues}))
        return
    print_rows(queues)
    click.echo(f"skips up to {plan.skipped} messages, delivers {plan.repeated} again; nothing has changed")


@group.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg group stop mailer\n  txmsg group stop dashboard --log metaq:7720")
@click.argument("name")
@administered
@json_option
def stop(*, name: str, administration: Administration, as_json: bool) -> None:
    """Stop delivery to a group, until `txmsg group start`. Consumers stay connected; messages wait.

    Messages that consumers have received are still processed. Brokers stop delivery within two seconds. Members of a
    group of a log finish the messages whose handlers run, and stop within a second.
    """
    _stop_or_start(name, administration, stopped=True, as_json=as_json)


@group.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg group start mailer")
@click.argument("name")
@administered
@json_option
def start(*, name: str, administration: Administration, as_json: bool) -> None:
    """Start delivery to a group that was stopped."""
    _stop_or_start(name, administration, stopped=False, as_json=as_json)


def _stop_or_start(name: str, administration: Administration, *, stopped: bool, as_json: bool) -> None:
    administration.alter_group(GroupChange(group=name, stopped=stopped))
    if as_json:
        click.echo(json_text({"group": name, "stopped": stopped}))
    else:
        say(f"delivery to group {name} {'stops' if stopped else 'starts'}")


@group.command(
    short_help="List the retries of a group.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group retries mailer",
)
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number per page."
)
@page_option
@administered
@json_option
@table_options
def retries(*, name: str, limit: int, page: str, administration: Administration, as_json: bool) -> None:
    """List messages in retry, in the order in which they are due. Notify only."""
    found = administration.list_retries(RetryQuery(group=name, limit=limit, after=page))
    if as_json:
        click.echo(json_text({"group": name, **asdict(found)}))
        return
    if not found.retries:
        click.echo("no retries")
        return
    names = ("id", "topic", "queue", "offset", "key", "attempts", "due_at", "last_error")
    rows = [{**asdict(retry), "last_error": first_line(retry.last_error)} for retry in found.retries]
    print_rows({field: row[field] for field in names} for row in rows)
    if found.next:
        click.echo(f"only the first {len(found.retries)}: go on with --page {found.next}", err=True)


@group.command(
    short_help="Deliver retries now.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group retry mailer\n"
    "  txmsg group retry mailer --id 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0",
)
@click.argument("name")
@click.option("--id", "id_", default="", metavar="ID", help="Only this message, or those of this transaction.")
@administered
@json_option
def retry(*, name: str, id_: str, administration: Administration, as_json: bool) -> None:
    """Deliver retries now instead of after their delay. Notify only.

    Retries that wait for an earlier message of their ordering key continue to wait.
    """
    count = sum(administration.retry_now(name, id_))
    click.echo(json_text({"group": name, "retries": count}) if as_json else f"retries delivered now: {count}")


@group.command(
    short_help="Delete the retry of a message.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group skip mailer 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0",
)
@click.argument("name")
@click.argument("id_", metavar="ID")
@administered
@yes_option
@json_option
def skip(*, name: str, id_: str, administration: Administration, yes: bool, as_json: bool) -> None:
    """Skip a message in retry: it is not delivered to the group again. This is final. Notify only.

    ID is a message id, as printed by `txmsg group retries`, or a transaction id. A handler that is processing the
    message continues. Later messages of its ordering key are delivered.
    """
    if not yes:
        click.confirm(printable(f"skip {id_} for group {name}, for good?"), abort=True, err=as_json)
    skipped = administration.skip_retry(name, id_)
    if not skipped:
        raise MisuseError(f"group {name!r} has no retry {id_}: `txmsg group retries {name}` shows existing ones")
    click.echo(json_text({"group": name, "skipped": skipped}) if as_json else f"messages skipped: {skipped}")


@group.command(
    short_help="Create a group before its first consumer does.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group create ledger --orderly on",
)
@click.argument("name")
@_orderly_option
@administered
@json_option
def create(*, name: str, orderly: str | None, administration: Administration, as_json: bool) -> None:
    """Create a group before its clients start, for settings that they read at start. Idempotent. Notify only.

    Its start position is set when its first consumer requests messages.
    """
    change = GroupChange(group=name, create=True, orderly=_switched(orderly))
    settings = _settings(name, administration.alter_group(change))
    if as_json:
        click.echo(json_text(settings))
    else:
        print_facts(settings)


@group.command(
    short_help="Change settings of a group.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group alter mailer --retry-delays '1s 5s 1m' --retries 3\n"
    "  txmsg group alter mailer --retry-exponential 1s..1h\n"
    "  txmsg group alter dashboard --log metaq:7720 --rate 100 --concurrency 2",
)
@click.argument("name")
@click.option("--retry-delays", metavar="DURATIONS", help="Delay before each retry; the last one repeats.")
@click.option("--retry-exponential", metavar="FROM..TO", help="Delays that double, from FROM to TO.")
@click.option("--retries", type=click.IntRange(0), help="Number of retries before a message becomes a dead letter.")
@click.option("--default-retries", is_flag=True, help="Reset delays and number of retries to the broker's.")
@click.option(
    "--poisoned-key",
    type=click.Choice(["continue", "park"]),
    help="After a dead letter, continue with its ordering key, or park the key for an operator.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0),
    help="Messages per second that each broker delivers, or each member of a log handles; 0: unlimited.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(0, CONCURRENCY_MAX),
    help="Most handlers of each subscription that run at once in each member; 0: as the subscription says. Log only.",
)
@_orderly_option
@click.option("--first-check-s", metavar="TIME", type=SECONDS, help="Time before the first check of a half message.")
@click.option("--check-interval-s", metavar="TIME", type=SECONDS, help="Time between checks of a half message.")
@click.option("--checks-max", type=click.IntRange(1), help="Number of checks after which a half message is parked.")
@click.option(
    "--no-client-park-s",
    metavar="TIME",
    type=SECONDS,
    help="Time without a client of the group after which a half message is parked.",
)
@click.option("--default-checks", is_flag=True, help="Reset check settings that are not given here to the broker's.")
@administered
@json_option
def alter(
    *,
    name: str,
    retry_delays: str | None,
    retry_exponential: str | None,
    retries: int | None,
    default_retries: bool,
    poisoned_key: PoisonedKey | None,
    rate: float | None,
    concurrency: int | None,
    orderly: str | None,
    default_checks: bool,
    administration: Administration,
    as_json: bool,
    **checks: float | None,
) -> None:
    """Change settings of a group while it is in use. Brokers apply them within two seconds.

    Check settings apply to the producer group of this name, all others to the consumer group. They do not move the
    first check of half messages that are already stored. Groups of a log have --rate and --concurrency, which their
    members apply within a second; at brokers, `txmsg config set client.concurrency@GROUP` sets the concurrency.
    """
    delays_s = None
    if retry_delays is not None:
        delays_s = [duration(text) for text in retry_delays.replace(",", " ").split()]
    elif retry_exponential is not None:
        delays_s = doubled(retry_exponential)
    change = GroupChange(
        group=name,
        retry_delays_s=delays_s,
        default_retries=default_retries,
        retries_max=retries,
        poisoned_key=poisoned_key,
        deliver_rate_max=rate,
        concurrency=concurrency,
        orderly=_switched(orderly),
    )
    checks_change = CheckChange(group=name, default_checks=default_checks, **checks)  # type: ignore[arg-type]
    if retry_delays is not None and retry_exponential is not None:
        raise click.UsageError("--retry-delays and --retry-exponential say the same: give one of them")
    changes_group, changes_checks = change != GroupChange(group=name), checks_change != CheckChange(group=name)
    if changes_group and changes_checks:
        raise click.UsageError("checks are of a producer group, the rest of a consumer group: change one at a time")
    if changes_checks:
        settings = asdict(administration.alter_checks(checks_change))
    elif delays_s == [] or not changes_group:
        raise click.UsageError("name what to change, such as --retries")
    else:
        settings = _settings(name, administration.alter_group(change))
    if as_json:
        click.echo(json_text(settings))
    else:
        print_facts(settings)


def doubled(text: str) -> list[float]:
    """Return the delays that FROM..TO stands for: FROM, twice that, and so on, and TO as the last."""
    first, separator, last = text.partition("..")
    if not separator:
        raise click.UsageError(f"--retry-exponential {text!r} is not of the form FROM..TO, such as 1s..1h")
    delay_s, last_s = duration(first), duration(last)
    delays_s: list[float] = []
    while delay_s < last_s and len(delays_s) < _DELAYS_MAX:
        delays_s.append(delay_s)
        delay_s *= 2
    return [*delays_s, last_s]


@group.command(
    short_help="Delete a group.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group delete mailer",
)
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Also delete its retries and dead letters; in Notify, even if it has members."
)
@dry_run_option
@administered
@yes_option
@json_option
def delete(*, name: str, force: bool, dry_run: bool, administration: Administration, yes: bool, as_json: bool) -> None:
    """Delete a group with its cursors, for good. Retention no longer keeps messages for it.

    Refused while it has members, retries or dead letters, unless --force is given. A consumer recreates it.
    """
    if dry_run:
        found = administration.show_group(name)
        counts = {"members": len(found.members), "waiting": found.waiting, "retrying": found.retrying}
        print_dry_run({"group": name, **counts, "dead": found.dead}, as_json=as_json)
        # Also as a dry run, so that a refusal (members, dead letters) is shown before the real call.
        administration.delete_group(GroupDeletion(group=name, force=force, dry_run=True))
        return
    if not yes:
        found = administration.show_group(name)
        question = f"delete group {name}, which has {found.waiting} messages to read and {found.dead} dead letters"
        click.confirm(f"{question}, for good?", abort=True, err=as_json)
    administration.delete_group(GroupDeletion(group=name, force=force))
    click.echo(json_text({"group": name, "deleted": True}) if as_json else f"group {name} deleted")


def _settings(name: str, settings: GroupSettings) -> dict[str, object]:
    delays_s = settings.retry_delays_s
    return {
        "group": name,
        "retry_delays": delays_s and [shown_duration(delay_s) for delay_s in delays_s],
        "retries": settings.retries_max,
        "poisoned_key": settings.poisoned_key,
        "rate": settings.deliver_rate_max,
        "concurrency": settings.concurrency,
        "stopped": settings.stopped,
        "orderly": settings.orderly,
    }


def _switched(text: str | None) -> bool | None:
    return None if text is None else text == "on"


def _print_queues(queues: Sequence[GroupQueue]) -> None:
    print_rows({**asdict(queue), "seeking": "seeks" if queue.seeking else None} for queue in queues)
