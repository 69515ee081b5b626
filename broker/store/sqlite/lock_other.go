//go:build !unix

package sqlite

import "os"

// lock is not supported here. The fence still protects the partition: see
// writer.transact.
func lock(*os.File) (bool, error) { return true, nil }

func unlock(*os.File) {}
