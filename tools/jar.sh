#!/bin/sh
# Compiles the catalog for Spark SQL: one jar for a minor version of Spark. A jar that no source is newer than stays.
# Called from the checkout's root, by the Makefile and by tests:
#
#   jar.sh VENV        the jar for the installed PySpark, against its jars
#   jar.sh VENV all    the jars for all minors; Maven fetches Spark's own classes of the other ones
set -eu

minors="1 2 3" # of Spark 4
venv=$1
others=${2:-}
sources=src/lakebed/spark/jvm
folder=src/lakebed/spark/jars
python=$venv/bin/python
installed=$("$python" -c 'import re, importlib.metadata as m; print(".".join(re.findall(r"\d+", m.version("pyspark"))[:2]))')

wanted=""
for minor in $minors; do
    jar=$folder/lakebed-spark-4.$minor.jar
    if [ "4.$minor" = "$installed" ]; then
        known=yes
    elif [ -z "$others" ]; then
        continue
    fi
    if [ ! -f "$jar" ] || [ -n "$(find "$sources" src/lakebed/__init__.py tools/jar.sh tools/spark.xml -newer "$jar")" ]; then
        wanted="$wanted $minor"
    fi
done
if [ -z "${known:-}" ]; then
    printf '\n%s\n\n' "The catalog for Spark SQL is not built for PySpark $installed: it is written for \
Spark$(printf ' 4.%s' $minors); all else works." >&2
fi
[ -n "$wanted" ] || exit 0
if ! command -v javac >/dev/null 2>&1 || ! command -v jar >/dev/null 2>&1; then
    printf '\n%s\n\n' "The catalog for Spark SQL is not built, since there is no JDK (javac and jar) on the PATH; all else \
works. Install a JDK 17 or newer (Debian: apt install openjdk-17-jdk-headless), then run make jar." >&2
    exit 0
fi

# fetch MINOR [OPTION]: Spark's own jars. With --update-snapshots Maven asks again for what it did not get before.
fetch() {
    minor=$1
    shift
    mvn --batch-mode --quiet "$@" --file tools/spark.xml "-Dspark=4.$minor.0" dependency:copy-dependencies \
        "-DoutputDirectory=$work/spark-$minor" >"$work/log" 2>&1
}

pyspark=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
libraries=$(find "$pyspark" -name '*.jar' ! -name 'spark-*' | tr '\n' ':')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
for minor in $wanted; do
    if [ "4.$minor" = "$installed" ]; then
        jars="$pyspark/*"
    else
        # The first release of a minor: what compiles against it runs with the later ones.
        if ! { fetch "$minor" || fetch "$minor" --update-snapshots; }; then
            tail -n 5 "$work/log" >&2
            printf '\n%s\n\n' "Maven could not get Spark 4.$minor.0, against which the catalog is compiled: is it installed, \
and is there a network? Then run make jars again." >&2
            exit 1
        fi
        jars="$work/spark-$minor/*:$libraries"
    fi
    set -- "$sources"/*.java "$sources/only-4.$minor"/*.java
    for since in $minors; do
        if [ "$since" -le "$minor" ] && [ -d "$sources/since-4.$since" ]; then
            set -- "$@" "$sources/since-4.$since"/*.java
        fi
    done
    classes=$work/classes-$minor
    if ! javac -nowarn -proc:none --release 17 -cp "$jars" -d "$classes" "$@" >"$work/log" 2>&1; then
        cat "$work/log" >&2
        exit 1
    fi
    sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/lakebed/__init__.py >"$classes/org/lakebed/spark/version.txt"
    jar --create --file "$folder/4.$minor.$$.new" -C "$classes" .
    mv "$folder/4.$minor.$$.new" "$folder/lakebed-spark-4.$minor.jar"
done
