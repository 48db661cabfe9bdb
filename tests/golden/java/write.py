"""Writes the golden files of this folder with the format's Java implementation; run by hand, with Java 17.

mvn dependency:copy -Dartifact=org.apache.paimon:paimon-bundle:1.4.2 -DoutputDirectory=.
python write.py paimon-bundle-1.4.2.jar
"""

import base64
import json
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DEFAULT = "__DEFAULT_PARTITION__"
CASES: list[dict[str, object]] = []


def add(
    kind: str,
    value: str | None,
    legacy: bool = True,
    default_name: str = DEFAULT,
    directory: str | None = None,
    bucket: int = 0,
    column: str = "p",
) -> None:
    """One case, once: dates and times as numbers, floating-point numbers as their bits, timestamps as ms+ns."""
    case = {
        "type": kind,
        "value": value,
        "legacy": legacy,
        "default_name": default_name,
        "directory": directory,
        "bucket": bucket,
        "column": column,
    }
    if case not in CASES:
        CASES.append(case)


def both(kind: str, values: list[str | None]) -> None:
    """Cases of both settings of partition.legacy-name."""
    for value in values:
        for legacy in (True, False):
            add(kind, value, legacy)


def encoded(text: object) -> str:
    """A field of the file that Java reads."""
    return "\\N" if text is None else base64.b64encode(str(text).encode()).decode()


def double(number: float) -> str:
    """The bits of a DOUBLE."""
    return str(struct.unpack("<Q", struct.pack("<d", number))[0])


def single(number: float) -> str:
    """The bits of a FLOAT."""
    return str(struct.unpack("<i", struct.pack("<f", number))[0])


texts = [
    "a",
    " ",
    "",
    None,
    "a b",
    "\t",
    "\u00a0",
    "\u2003",
    "\u3000",
    "a/b",
    "..",
    ".",
    "a=b",
    "100%",
    "é",
    "日本",
    "😀",
    "~`!@$&()-_+|;,.<>",
    "\"#%'*/:=?\\{}[]^",
    "\x7f",
    "\x01\x1f",
    "x" * 300,
    "__DEFAULT_PARTITION__",
    "CON",
    "\u200b",
    "\x1c",
    "\x85",
    "2024-01-01 00:00:00",
    " lead",
    "trail ",
    "\u0130",
]
both("STRING", texts)
both("VARCHAR(10)", ["ab", "  "])
both("CHAR(4)", ["ab  ", "    ", "abcd"])
both("BOOLEAN", ["true", "false", None])
both("TINYINT", ["-128", "0", "127"])
both("SMALLINT", ["-32768", "32767"])
both("INT", ["-2147483648", "0", "2147483647", None])
both("BIGINT", ["-9223372036854775808", "9223372036854775807"])
both(
    "DATE",
    [
        str(x)
        for x in (
            0,
            15706,
            -1,
            19000,
            -719162,
            -719163,
            2932896,
            2932897,
            -719528,
            -719529,
            -1000000,
            106751991 // 2,
            2147483647,
            -2147483648,
        )
    ]
    + [None],
)
ds = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    0.001,
    0.0001,
    123456.789,
    9999999.0,
    1e7,
    1e10,
    1.5e-5,
    1e-3,
    9.999e-4,
    1e23,
    2e-3,
    1e16,
    123456789012345680.0,
    1.7976931348623157e308,
    5e-324,
    2.2250738585072014e-308,
    1e-323,
    2e-44,
    float("inf"),
    float("-inf"),
    float("nan"),
    3.141592653589793,
    2.0**-44,
    1 / 3,
    2**53 + 0.0,
    1e21,
    1e22,
    4.35,
    0.3,
    100.0,
    1234567.0,
    2.0e-3,
    1.1e-5,
    9007199254740993.0,
    8.41e21,
    2.98023223876953125e-8,
    2.0e23,
    5e-5,
]
both("DOUBLE", [double(x) for x in ds] + [None])
both(
    "FLOAT",
    [
        single(x)
        for x in (
            0.0,
            -0.0,
            1.0,
            0.1,
            1e7,
            1e10,
            3.4028234663852886e38,
            1.401298464324817e-45,
            1.17549435e-38,
            float("inf"),
            float("-inf"),
            float("nan"),
            16777216.0,
            0.001,
            9.999e-4,
            3.3554432e7,
            1.1e-3,
            2e-3,
            8.5899346e9,
            1e-45,
            3e-45,
        )
    ]
    + [None],
)
both("DECIMAL(10, 2)", ["0", "1.5", "-0.01", "12345678.90"])
both("DECIMAL(38, 18)", ["0", "1E-18", "-99999999999999999999.999999999999999999"])
both("DECIMAL(5, 0)", ["0", "12345"])
both("DECIMAL(20, 20)", ["1E-20"])
for p in range(0, 10):
    both(f"TIME({p})", ["0", "3600000", "43200120", "86399999", "1", "1000", "100"])
ts = [
    (0, 0),
    (1704067200000, 0),
    (1704067260000, 0),
    (1704067261000, 0),
    (1704067261120, 0),
    (1704067261123, 456000),
    (1704067261123, 456789),
    (1704067261000, 1),
    (-1, 0),
    (-62135596800000, 0),
    (-62135596800001, 0),
    (-62167219200000, 0),
    (-62167219200001, 0),
    (253402300799999, 999999),
    (253402300800000, 0),
    (-377705116800000, 0),
    (4102444800000, 500000),
]
for root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
    for p in (0, 1, 3, 6, 9):
        for m, n in ts:
            if p < 9:
                n = n // 10 ** (9 - p) * 10 ** (9 - p) if p > 3 else 0
            if p < 3:
                m = m // 10 ** (3 - p) * 10 ** (3 - p)
            for legacy in (True, False):
                add(f"{root}({p})", f"{m}+{n}", legacy)
    for legacy in (True, False):
        add(f"{root}(3)", None, legacy)
for default in ("none", " NULL ", "a/b", "x=y", "日本"):
    add("STRING", None, default_name=default)
    add("INT", None, False, default)
    add("STRING", " ", False, default)
for directory in ("data", "a/b", "a/b/", "./y", "a//b", "é d", "a=b", "data "):
    add("INT", "5", directory=directory)
for bucket in (-2, -1, 0, 1, 17):
    add("INT", "5", bucket=bucket)
for column in ("P", "a/b", "a=b", "é", " sp", "x%y", "a b", "CamelCase"):
    add("INT", "5", column=column)
    add("STRING", "v/w", False, column=column)

if __name__ == "__main__":
    class_path = f"{sys.argv[1]}:."
    lines = []
    for case in CASES:
        texts = [encoded(case[name]) for name in ("value", "default_name", "directory", "column")]
        fields = [case["type"], texts[0], str(case["legacy"]).lower(), texts[1], texts[2], case["bucket"], texts[3]]
        lines.append("\t".join(map(str, fields)))
    Path("cases.tsv").write_text("\n".join(lines) + "\n")
    sources = [str(HERE / name) for name in ("Folders.java", "Floats.java")]
    subprocess.run(["javac", "-cp", class_path, "-d", ".", *sources], check=True)
    utc = ["-Duser.timezone=UTC", "-Dfile.encoding=UTF-8"]
    subprocess.run(["java", *utc, "-cp", class_path, "Folders", "cases.tsv", "folders.txt"], check=True)
    subprocess.run(["java", "-cp", class_path, "Floats", "1", "1500", str(HERE / "floats.txt")], check=True)
    folders = Path("folders.txt").read_text().split("\n")
    rows = [json.dumps(case | {"folder": folder}) for case, folder in zip(CASES, folders, strict=False)]
    (HERE / "folders.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
