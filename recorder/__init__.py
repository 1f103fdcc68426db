"""Record Gymnasium environments: one line of code, ordinary files, nothing lost."""

__version__ = "0.1.0.dev0"
