"""`txmsg schema`: what the payloads of topics look like, by version."""

from __future__ import annotations

import json
from typing import Any

import click

from txmsg.administration.schemas import SchemaAdministration
from txmsg.app.loading import load, load_topics
from txmsg.cli.connections import asker, broker_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option, table_options
from txmsg.cli.output import json_text, print_facts, print_rows, say
from txmsg.errors import MisuseError
from txmsg.typed.asyncapi import asyncapi as document_of
from txmsg.typed.registry import SchemaVersion


@click.group()
def schema() -> None:
    """Register schemas of topics with a Notify database, show and check them, and describe topics in AsyncAPI.

    MODULE:NAME is a Topic(...), or a Txmsg(...) whose topics are meant.
    """


@schema.command(
    short_help="Register the versions that topics declare.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema register shop.events:ORDERS",
)
@click.argument("name", metavar="MODULE:NAME")
@broker_option
@json_option
def register(*, name: str, broker: str, as_json: bool) -> None:
    """Register the version that a topic declares, if it is compatible with the latest one. Idempotent."""
    schemas = SchemaAdministration(asker(broker))
    done = [{"topic": t.name, "version": t.version, "registered": schemas.register(t)} for t in load_topics(name)]
    if as_json:
        click.echo(json_text({"topics": done}))
        return
    for each in done:
        say(
            f"version {each['version']} of topic {each['topic']} "
            + ("registered" if each["registered"] else "was registered already")
        )


@schema.command(
    short_help="Say whether a version could be registered.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema check shop.events:ORDERS",
)
@click.argument("name", metavar="MODULE:NAME")
@broker_option
@json_option
def check(*, name: str, broker: str, as_json: bool) -> None:
    """Say whether the version that a topic declares is registered or could be; change nothing. Exit status 1: no."""
    schemas = SchemaAdministration(asker(broker))
    found = [(topic, schemas.check(topic)) for topic in load_topics(name)]
    if as_json:
        click.echo(
            json_text(
                {
                    "topics": [
                        {"topic": topic.name, "version": topic.version, "is_registered": after is None, "after": after}
                        for topic, after in found
                    ]
                }
            )
        )
        return
    for topic, after in found:
        how = f"can follow version {after}" if after else "is registered" if after is None else "can be the first one"
        say(f"version {topic.version} of topic {topic.name} {how}")


@schema.command(
    "list",
    short_help="List the versions that are registered.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema list\n  txmsg schema list order.placed --json",
)
@click.argument("topic", default="")
@broker_option
@json_option
@table_options
def list_(*, topic: str, broker: str, as_json: bool) -> None:
    """List the versions that are registered, of all topics or of TOPIC."""
    found = [_facts(each) for each in SchemaAdministration(asker(broker)).list(topic)]
    if as_json:
        click.echo(json_text({"schemas": found}))
    elif found:
        print_rows(found)
    else:
        say("no schemas" + (f" of topic {topic}" if topic else ""))


@schema.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema show order.placed\n  txmsg schema show order.placed 1")
@click.argument("topic")
@click.argument("version", type=click.IntRange(1), required=False)
@broker_option
@json_option
def show(*, topic: str, version: int | None, broker: str, as_json: bool) -> None:
    """Show the latest version of a topic's schema, or VERSION."""
    versions = {each.version: each for each in SchemaAdministration(asker(broker)).list(topic)}
    found = versions.get(version or max(versions, default=0))
    if found is None:
        there = f"there are {', '.join(map(str, versions))}" if versions else "none is registered"
        raise MisuseError(
            f"topic {topic!r} has no {f'version {version}' if version else 'version'} of a schema: {there}; "
            "`txmsg schema register MODULE:NAME` adds one"
        )
    if as_json:
        click.echo(json_text({**_facts(found), "schema": found.schema}))
        return
    print_facts(_facts(found))
    click.echo(json.dumps(found.schema, indent=2))


@schema.command(
    short_help="Print an AsyncAPI document of the topics, or of an application.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema asyncapi --title shop > asyncapi.json\n"
    "  txmsg schema asyncapi shop.main:app --document-version 1.4.0",
)
@click.argument("app", metavar="[MODULE:APP]", default="")
@click.option("--title", metavar="TEXT", help="Title in the document.  [default: the application's name, or txmsg]")
@click.option(
    "--document-version", "version", metavar="TEXT", default="1.0.0", show_default=True, help="Version in the document."
)
@broker_option
@json_option
def asyncapi(*, app: str, title: str | None, version: str, broker: str, as_json: bool) -> None:
    """Print an AsyncAPI 3.0 document: of all topics with a registered schema, in all their versions.

    Or of the application MODULE:APP, which needs no broker: what it sends and receives.
    """
    document: dict[str, Any]
    if app:
        document = load(app).asyncapi(title=title or app, version=version)
    else:
        document = document_of(SchemaAdministration(asker(broker)).list(), title=title or "txmsg", version=version)
    click.echo(json_text(document) if as_json else json.dumps(document, indent=2))


def _facts(found: SchemaVersion) -> dict[str, object]:
    return {
        "topic": found.topic,
        "version": found.version,
        "content_type": found.content_type,
        "registered_at": found.registered_at,
        "registered_by": found.registered_by,
    }
