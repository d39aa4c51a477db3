"""A table of the user's in a file, for experiment files and nodes."""

from pathlib import Path
from typing import Any, Literal

from fedprox.datasets.sources import locate
from fedprox.federation import Federation, of_layout
from fedprox.table_layout import Layout, lay_out


def table(
    table: str,
    *,
    client: str | None = None,
    client_name: str | None = None,
    label: str,
    features: list[str] | None = None,
    test: str | float | None = None,
    kinds: dict[str, Any] | None = None,
    missing: Literal["column"] | dict[str, Any] | None = None,
    standardize: Literal["federation", "client", "none"] | dict[str, list[float]] = "federation",
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """A table with a row for each example, in a CSV, Parquet or Feather file of your own.

    This is `Federation.from_table` for a file; see there for more about the
    arguments.

    Args:
        table: The file, .csv, .parquet, .feather or .arrow, relative to the current folder or the
            data folder.
        client: The column that names each row's client.
        client_name: In place of `client`, the name of the one client whose rows these are.
        label: The column to predict.
        features: The columns to predict it from; None for all others.
        test: The column that says "train", "test" or "validation", or the share of each client's
            rows to test on; None for no test rows.
        kinds: Kinds of columns whose values do not tell: a table from a column's name to its kind.
            That is "number", "boolean", "category", "index" or "date", or a table with some of
            `kind`, `values`, `missing` and `unit`.
        missing: Replacements of missing values: a table from a column's name to a value, or to
            "column" for a further column that says where; "column" for all columns that have some.
        standardize: How numbers are standardized: "federation" by the mean and standard deviation
            of all clients' training rows, "client" by those of each client's own, "none" not at
            all. A table from a column's name to [mean, scale] gives them.
        seed: Seed of the rows to test on.
        data_dir: The data folder; None for `FEDPROX_DATA`.

    Returns:
        A federation of the table's rows.

    Raises:
        InputError: If the file is missing or damaged, pyarrow is not installed, a column is
            missing, a value cannot be used, or a client has no training row.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.table(  # doctest: +SKIP
        ...     "patients.csv", client="hospital", label="ill", test=0.2
        ... )

    References:
        Wickham, `Tidy Data <https://doi.org/10.18637/jss.v059.i10>`_, Journal of Statistical
        Software 2014, section 2: a row for each observation, a column for each variable.
    """
    return of_layout(
        laid_out(
            table,
            client=client,
            client_name=client_name,
            label=label,
            features=features,
            test=test,
            kinds=kinds,
            missing=missing,
            standardize=standardize,
            seed=seed,
            data_dir=data_dir,
        )
    )


def laid_out(
    table: str, *, standardize: Any, data_dir: str | Path | None = None, **others: Any
) -> Layout:
    """The rows of a table by client, before they are standardized; the arguments are `table`'s."""
    path = locate(table, data_dir, Path.is_file, "file", key="data.table")
    return lay_out(path, standardize=None if standardize == "none" else standardize, **others)
