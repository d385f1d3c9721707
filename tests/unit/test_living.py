"""`living` finds objects by class even if other objects in memory raise when their class is read."""

from __future__ import annotations

from tests.living import living


class _Refusing:
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"not configured, so there is no {name}")


class _Sought:
    pass


def test_an_object_that_hides_its_class_is_skipped() -> None:
    beside = [_Refusing()]
    sought = _Sought()
    assert living(_Sought) == [sought]
    del beside, sought
    assert living(_Sought) == []
