"""Write numgrad/data/digits.npz from scikit-learn's copy of the digits, byte for byte repeatable.

Run from the root of the repository, with the `test` extra installed:

    python tools/make_digits.py

numgrad/data/DIGITS.md says where the data come from and under which licence.
"""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parents[1] / "numgrad" / "data" / "digits.npz"


def main() -> None:
    bunch = load_digits()
    pixels = bunch.data.astype(np.uint8)  # (1797, 64), 0 to 16
    labels = bunch.target.astype(np.uint8)  # (1797,), 0 to 9
    assert np.array_equal(pixels, bunch.data) and np.array_equal(labels, bunch.target)

    # np.savez_compressed stamps each member with the time of writing; this does not.
    with zipfile.ZipFile(TARGET, "w") as archive:
        for name, array in (("pixels", pixels), ("labels", labels)):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(member, buffer.getvalue(), zipfile.ZIP_DEFLATED, 9)

    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
    for name, array in (("pixels", pixels), ("labels", labels)):
        print(f"{name} {array.shape} sha256 {hashlib.sha256(array.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
