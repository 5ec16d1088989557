"""One request as task code sees it: lm-eval's Instance, field for field."""

import dataclasses
from typing import Any


@dataclasses.dataclass(eq=False)
class Instance:
    """A request of one document. Built once; only `evaluation.py` fills `resps` and `filtered_resps`.

    Attributes:
      request_type: "loglikelihood", "loglikelihood_rolling" or "generate_until".
      doc: the document that asks.
      arguments: (context, continuation), (text,) or (context, generation_kwargs).
      idx: which of the document's requests this is; the choice index in multiple choice.
      metadata: (task_name, doc_id, repeats).
      resps: one answer per repeat: (logprob, is_greedy), logprob, or text.
      filtered_resps: one entry per filter pipeline.
    """

    request_type: str
    doc: dict[str, Any]
    arguments: tuple[Any, ...]
    idx: int
    metadata: tuple[str | None, int | None, int | None] = (None, None, None)
    resps: list[Any] = dataclasses.field(default_factory=list)
    filtered_resps: dict[str, Any] = dataclasses.field(default_factory=dict)
    task_name: str | None = dataclasses.field(init=False)
    doc_id: int | None = dataclasses.field(init=False)
    repeats: int | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.task_name, self.doc_id, self.repeats = self.metadata

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments, always as a tuple."""
        return self.arguments if isinstance(self.arguments, tuple) else (self.arguments,)
