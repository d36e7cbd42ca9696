# tool NAME PACKAGE: the path of a tool of testdata/tools, built if its versions changed. Sourced by the scripts here.
tool() {
	dir=${XDG_CACHE_HOME:-$HOME/.cache}/muster-tools
	sum=$(cat testdata/tools/go.sum testdata/tools/go.mod | sha256sum | cut -c1-16)
	bin=$dir/$1-$sum
	if [ ! -x "$bin" ]; then
		echo "building $1 (once)" >&2
		mkdir -p "$dir"
		(cd testdata/tools && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$bin.tmp$$" "$2" >&2) || return 1
		mv "$bin.tmp$$" "$bin"
	fi
	echo "$bin"
}
