package systems

import (
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/mod/semver"
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

// Older compares versions as servers print them: "2.10.27", "v3.9",
// "4.0.5-1~deb13". A text without a version is older than none.
func Older(version, than string) bool {
	v, t := leadingVersion.FindString(version), leadingVersion.FindString(than)
	return v != "" && t != "" && semver.Compare("v"+v, "v"+t) < 0
}

// Of leading zeros semver takes none, and of servers none has them.
var leadingVersion = regexp.MustCompile(`\d+(\.\d+){0,2}`)

// TooOld is an error if the server that a description names by one of its
// versions is older than the oldest that its adapter can drive.
func TooOld(server, version, oldest string) error {
	if !Older(version, oldest) {
		return nil
	}
	return fmt.Errorf("%s %s is too old: this adapter needs %s or later", server, version, oldest)
}
