#!/usr/bin/env bash
# fetch_python.sh VERSION FOLDER: Debian's newest build of a Python, such as 3.14, with the libraries that it needs, in a
# folder: what is installed stays as it is. apt checks the signatures; patchelf has the program find its own libraries.
set -euo pipefail
version=$1
folder=$(realpath --canonicalize-missing "$2")
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

# The mirror that this machine is set up for.
mirror=$(grep -Ehor 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list* | head --lines=1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$work/sources.list"
mkdir -p "$work"/{lists,cache/archives}/partial
touch "$work/status"  # of a machine on which nothing is installed
cat > "$work/apt.conf" << END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "-";
Dir::State "$work";
Dir::State::Status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "$(id --user --name)";
Acquire::Languages "none";
END
export APT_CONFIG=$work/apt.conf
apt-get update --quiet=2
apt-get install --quiet=2 --yes --download-only --no-install-recommends "python$version"
rm -rf "$folder"
mkdir -p "$folder"
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$folder"
done
libraries=$(dirname "$(find "$folder/usr/lib" -name 'libc.so.6')")
patchelf --set-interpreter "$(find "$libraries" -name 'ld-linux*')" --force-rpath --set-rpath "$libraries" \
  "$folder/usr/bin/python$version"
"$folder/usr/bin/python$version" -c 'import ctypes, sqlite3, ssl, sys; print("Python", sys.version.split()[0], sys.prefix)'
