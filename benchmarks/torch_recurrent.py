"""The papers' recurrent models as torch modules.

torch's LSTM has no peepholes, so FedAvg's models do a little less work than in the library, and it
has two biases for each gate.
"""

from typing import Any

from torch import nn


class NextSymbol(nn.Module):
    """An embedding, LSTM layers, and an output for each symbol."""

    def __init__(
        self, symbols: int, width: int, units: int, *, layers: int, every_position: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, units, layers, batch_first=True)
        self.output = nn.Linear(units, symbols)
        self.every_position = every_position

    def forward(self, ids: Any) -> Any:
        """(B, length) -> (B, symbols), or (B, length, symbols)."""
        steps = self.lstm(self.embedding(ids))[0]
        return self.output(steps if self.every_position else steps[:, -1])


class Sentiment(nn.Module):
    """Two layers of LSTM over word vectors, a dense layer of 30, two classes."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, units, 2, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(units, 30), nn.Linear(30, 2))

    def forward(self, vectors: Any) -> Any:
        """(B, length, width) -> (B, 2)."""
        return self.dense(self.lstm(vectors)[0][:, -1])


def char_lstm(hidden: int) -> nn.Module:
    """The model of FedProx and FedDyn: 80 characters."""
    return NextSymbol(80, 8, hidden, layers=2, every_position=False)


def peephole_char_lstm() -> nn.Module:
    """FedAvg's model: 258 characters, a label at every position, no peepholes."""
    return NextSymbol(258, 8, 256, layers=2, every_position=True)


def peephole_word_lstm() -> nn.Module:
    """FedAvg's model: 10,000 words, a label at every position, no peepholes."""
    return NextSymbol(10_000, 192, 256, layers=1, every_position=True)


def sentiment_lstm(hidden: int) -> nn.Module:
    """FedProx's model: word vectors of 300."""
    return Sentiment(300, hidden)
