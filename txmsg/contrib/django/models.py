"""txmsg's tables as models for reading: only txmsg writes their rows. Migrations create the tables by SQL."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from txmsg.checker.tables import fence_table, inbox_table, outbox_table


class Fence(models.Model):
    """One row per transaction that sent messages: the proof of its outcome."""

    transaction_id = models.UUIDField(primary_key=True)
    outcome = models.CharField(max_length=8)
    created_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = fence_table.name
        verbose_name_plural = "fence"

    def __str__(self) -> str:
        return f"{self.transaction_id} {self.outcome}"


class Inbox(models.Model):
    """One row per message that an idempotent handler has handled."""

    pk = models.CompositePrimaryKey("group_name", "message_id")
    group_name = models.CharField(max_length=127)
    message_id = models.CharField(max_length=48)
    generation = models.IntegerField()
    handled_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = inbox_table.name
        indexes: ClassVar[list[models.Index]] = []
        verbose_name_plural = "inbox"

    def __str__(self) -> str:
        return f"{self.group_name} {self.message_id}"


class Outbox(models.Model):
    """One row per transaction whose messages wait until a broker takes them."""

    seq = models.BigAutoField(primary_key=True)
    group_name = models.CharField(max_length=127)
    transaction_id = models.UUIDField()
    ordering_key = models.CharField(max_length=1536, null=True)
    size_bytes = models.IntegerField()
    written_at = models.DateTimeField()
    refused = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = outbox_table.name
        verbose_name_plural = "outbox"

    def __str__(self) -> str:
        return f"{self.seq} {self.group_name}"
