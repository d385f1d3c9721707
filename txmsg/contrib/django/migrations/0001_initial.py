from typing import ClassVar

from django.db import migrations, models

from txmsg.contrib.django.tables import CreateTables


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        CreateTables(),
        # Of tables that are there already: they do nothing to a database, and `makemigrations` finds nothing to add.
        migrations.CreateModel(
            name="Fence",
            fields=[
                ("transaction_id", models.UUIDField(primary_key=True, serialize=False)),
                ("outcome", models.CharField(max_length=8)),
                ("created_at", models.DateTimeField()),
            ],
            options={"verbose_name_plural": "fence", "db_table": "txmsg_fence", "managed": False},
        ),
        migrations.CreateModel(
            name="Inbox",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "group_name",
                        "message_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("group_name", models.CharField(max_length=127)),
                ("message_id", models.CharField(max_length=48)),
                ("generation", models.IntegerField()),
                ("handled_at", models.DateTimeField()),
            ],
            options={"verbose_name_plural": "inbox", "db_table": "txmsg_inbox", "managed": False},
        ),
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                ("group_name", models.CharField(max_length=127)),
                ("transaction_id", models.UUIDField()),
                ("ordering_key", models.CharField(max_length=1536, null=True)),
                ("size_bytes", models.IntegerField()),
                ("written_at", models.DateTimeField()),
                ("refused", models.TextField(null=True)),
            ],
            options={"verbose_name_plural": "outbox", "db_table": "txmsg_outbox", "managed": False},
        ),
    ]
