from typing import ClassVar

from django.db import migrations

from txmsg.contrib.django.tables import CreateTables


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [CreateTables()]
