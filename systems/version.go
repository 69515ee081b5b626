package systems

import (
	"reflect"
	"runtime"
	"strings"
)

// LibraryVersion is the version of the module that a function was built from,
// as in "v1.2.3"; "unknown" where the sources are not kept by version. The path
// of the source tells it: what debug.ReadBuildInfo says of modules is missing in
// the binaries of tests.
func LibraryVersion(function any) string {
	const unknown = "unknown"
	f := reflect.ValueOf(function)
	if f.Kind() != reflect.Func || f.IsNil() {
		return unknown
	}
	code := runtime.FuncForPC(f.Pointer())
	path, _ := code.FileLine(code.Entry()) // …/example.org/library@v1.2.3/file.go
	at := strings.LastIndex(path, "@v")
	if at < 0 {
		return unknown
	}
	version, _, _ := strings.Cut(path[at+1:], "/")
	return version
}
