"""`txmsg schema`: versions of the schemas of topics' payloads. Asks the service Schemas."""

from __future__ import annotations

import json
from typing import Any

import click

from txmsg.administration.ask import AskBroker
from txmsg.administration.schemas import DeleteSchema, SchemasService, register_schema, schemas_of
from txmsg.client.app.loading import load, load_topics
from txmsg.errors import MisuseError, printable
from txmsg.message.typed.asyncapi import asyncapi as document_of
from txmsg.message.typed.registry import SchemaVersion, latest_before
from txmsg.ops.cli.connections import of_database
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import Decorator, dry_run_option, json_option, table_options, yes_option
from txmsg.ops.cli.output import json_text, print_dry_run, print_facts, print_rows, say

_asking: Decorator = of_database(lambda ask: ask, "ask")


@click.group()
def schema() -> None:
    """Register, check, show and delete schemas of topics, and describe topics in AsyncAPI.

    MODULE:NAME is a Topic(...), or a Txmsg(...) for its topics.
    """


@schema.command(
    short_help="Register the versions that topics declare.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema register shop.events:ORDERS",
)
@click.argument("name", metavar="MODULE:NAME")
@_asking
@json_option
def register(*, name: str, ask: AskBroker, as_json: bool) -> None:
    """Register the version that a topic declares, if it is compatible with the latest one. Idempotent."""
    done = [{"topic": t.name, "version": t.version, "registered": register_schema(ask, t)} for t in load_topics(name)]
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
@_asking
@json_option
def check(*, name: str, ask: AskBroker, as_json: bool) -> None:
    """Check whether the version that a topic declares is registered or could be. Exit status 1 if not."""
    found = [(topic, latest_before(topic, list(schemas_of(ask, topic.name)))) for topic in load_topics(name)]
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
@_asking
@json_option
@table_options
def list_(*, topic: str, ask: AskBroker, as_json: bool) -> None:
    """List the versions that are registered, of all topics or of TOPIC."""
    found = [_facts(each) for each in schemas_of(ask, topic)]
    if as_json:
        click.echo(json_text({"schemas": found}))
    elif found:
        print_rows(found)
    else:
        say("no schemas" + (f" of topic {topic}" if topic else ""))


@schema.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema show order.placed\n  txmsg schema show order.placed 1")
@click.argument("topic")
@click.argument("version", type=click.IntRange(1), required=False)
@_asking
@json_option
def show(*, topic: str, version: int | None, ask: AskBroker, as_json: bool) -> None:
    """Show the latest version of a topic's schema, or VERSION."""
    versions = {each.version: each for each in schemas_of(ask, topic)}
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
    short_help="Delete a version of a topic's schema.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg schema delete order.placed 1",
)
@click.argument("topic")
@click.argument("version", type=click.IntRange(1))
@click.option("--latest", is_flag=True, help="Allow deleting the latest version.")
@dry_run_option
@_asking
@yes_option
@json_option
def delete(*, topic: str, version: int, latest: bool, dry_run: bool, ask: AskBroker, yes: bool, as_json: bool) -> None:
    """Delete one version of a topic's schema, for good. Messages are not affected.

    An application that declares the version can register it again only if it is above the latest one. Without --latest,
    the latest version is refused: the next one is compared with it.
    """
    deletion = DeleteSchema(topic=topic, version=version, latest=latest, dry_run=dry_run)
    if dry_run:
        versions = [each.version for each in schemas_of(ask, topic)]
        is_latest = version == max(versions, default=0)
        left = [each for each in versions if each != version]
        print_dry_run({"topic": topic, "version": version, "is_latest": is_latest, "left": left}, as_json=as_json)
        # Also as a dry run, so that a refusal is shown before the real call.
        ask(SchemasService.delete, deletion)
        return
    if not yes:
        question = f"delete version {version} of the schema of topic {topic}, for good?"
        click.confirm(printable(question), abort=True, err=as_json)
    ask(SchemasService.delete, deletion)
    if as_json:
        click.echo(json_text({"topic": topic, "version": version, "deleted": True}))
    else:
        say(f"version {version} of the schema of topic {topic} deleted")


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
@_asking
@json_option
def asyncapi(*, app: str, title: str | None, version: str, ask: AskBroker, as_json: bool) -> None:
    """Print an AsyncAPI 3.0 document of all topics with a registered schema, in all their versions.

    With MODULE:APP: of the topics that this application sends to and receives from. This needs no broker.
    """
    document: dict[str, Any]
    if app:
        document = load(app).asyncapi(title=title or app, version=version)
    else:
        document = document_of(schemas_of(ask), title=title or "txmsg", version=version)
    click.echo(json_text(document) if as_json else json.dumps(document, indent=2))


def _facts(found: SchemaVersion) -> dict[str, object]:
    return {
        "topic": found.topic,
        "version": found.version,
        "content_type": found.content_type,
        "registered_at": found.registered_at,
        "registered_by": found.registered_by,
    }
