"""The one error of checkpoint files."""


class CheckpointError(RuntimeError):
    """A checkpoint file that cannot be read: which file, where in it, and why.

    ``path``, ``where`` and ``reason`` are attributes. No other error is raised for what stands in a
    file, however broken it is.
    """

    def __init__(self, path: str, where: str, reason: str) -> None:
        super().__init__(path, where, reason)
        self.path, self.where, self.reason = path, where, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.where}: {self.reason}"
