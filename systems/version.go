package systems

import (
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/mod/semver"
)

// LibraryVersion returns the version of the module that contains function, as
// in "v1.2.3", or "unknown". It is read from the source path, because test
// binaries lack the modules in debug.ReadBuildInfo.
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
// "4.0.5-1~deb13". It is false if either has none.
func Older(version, than string) bool {
	v, t := leadingVersion.FindString(version), leadingVersion.FindString(than)
	return v != "" && t != "" && semver.Compare("v"+v, "v"+t) < 0
}

// No server uses leading zeros, which semver rejects.
var leadingVersion = regexp.MustCompile(`\d+(\.\d+){0,2}`)

// TooOld returns an error if a server's version is older than the oldest its
// adapter can drive.
func TooOld(server, version, oldest string) error {
	if !Older(version, oldest) {
		return nil
	}
	return fmt.Errorf("%s %s is too old: this adapter needs %s or later", server, version, oldest)
}
