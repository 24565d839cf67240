#!/usr/bin/env bash
# fetch_onnxruntime_headers.sh FOLDER: the headers of onnxruntime for C and C++, which the packages for pip and npm lack.
# They are those of Debian 13, whichever Debian this machine runs: apt checks their signature, and what is installed stays
# as it is. The API has versions: headers of 1.21 fit the library of any later one.
set -euo pipefail
folder=$(realpath --canonicalize-missing "$1")
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

# The mirror that this machine is set up for.
mirror=$(grep -Ehor 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list* | head --lines=1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$work/sources.list"
mkdir -p "$work"/{lists,cache/archives}/partial
touch "$work/status"
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
cd "$work"
apt-get update --quiet=2
apt-get download --quiet=2 'libonnxruntime-dev=1.21.*'
dpkg-deb --extract libonnxruntime-dev_*.deb .
rm -rf "$folder"
mv usr/include/onnxruntime "$folder"
