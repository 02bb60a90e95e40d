"""What people may look at, but change elsewhere: params, as a dict that says where."""

from __future__ import annotations

from typing import Any, NoReturn


class FixedParams(dict[str, Any]):
    """Params by name; changing one raises TypeError, as it would act on nothing."""

    __slots__ = ("_advice",)

    def __init__(self, params: Any, advice: str) -> None:
        super().__init__(params)
        self._advice = advice

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"these params are a copy, so changing them changes nothing; {self._advice}"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = _refuse
    update: Any = _refuse
    setdefault: Any = _refuse

    def __reduce__(self) -> Any:
        return dict, (dict(self),)
