#!/bin/sh
# Compiles the catalog for Spark SQL against the jars of the installed PySpark. Nothing is done when no source is newer
# than the jar. Called by the Makefile, from the checkout's root: jar.sh VENV
set -eu

venv=$1
sources=src/lakebed/spark/jvm
python=$venv/bin/python
version=$("$python" -c 'import re, importlib.metadata as m; print(".".join(re.findall(r"\d+", m.version("pyspark"))[:2]))')
target=src/lakebed/spark/jars/lakebed-spark-$version.jar

if [ "$version" != 4.3 ]; then
    printf '\n%s\n\n' "The catalog for Spark SQL is not built: it is written for Spark 4.3, and PySpark $version is installed; \
all else works." >&2
    exit 0
fi
if [ -f "$target" ] && [ -z "$(find "$sources" src/lakebed/__init__.py tools/jar.sh -newer "$target")" ]; then
    exit 0
fi
if ! command -v javac >/dev/null 2>&1 || ! command -v jar >/dev/null 2>&1; then
    printf '\n%s\n\n' "The catalog for Spark SQL is not built, since there is no JDK (javac and jar) on the PATH; all else \
works. Install a JDK 17 or newer (Debian: apt install openjdk-17-jdk-headless), then run make jar." >&2
    exit 0
fi
jars=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
javac -nowarn -proc:none --release 17 -cp "$jars/*" -d "$classes" "$sources"/*.java
sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/lakebed/__init__.py >"$classes/org/lakebed/spark/version.txt"
mkdir -p "$(dirname "$target")"
jar --create --file "$target.new" -C "$classes" .
mv "$target.new" "$target"
