"""A figure that notebooks show, also where pyplot is not used."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that notebooks show as a picture.

    They show a plain `Figure` as text unless pyplot has set up its inline backend.
    """

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
