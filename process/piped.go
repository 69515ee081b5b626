package process

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Piped is a program that is spoken to over its standard input and output. The
// end of In tells it to exit. It dies with this process, and the processes that
// it has started are struck with it.
type Piped struct {
	Process
	In  *os.File
	Out *os.File
	log *tail
}

// Said is the end of its standard error.
func (p *Piped) Said() string { return p.log.String() }

// StartPiped starts a program; log receives its standard error.
func StartPiped(command []string, log io.Writer) (*Piped, error) {
	fail := func(err error) (*Piped, error) {
		return nil, fmt.Errorf("process: start %s: %w", filepath.Base(command[0]), err)
	}
	itsIn, in, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	out, itsOut, err := os.Pipe()
	if err != nil {
		itsIn.Close()
		in.Close()
		return fail(err)
	}
	defer itsIn.Close()
	defer itsOut.Close()
	said := &tail{to: log}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = itsIn, itsOut, said
	p, err := startProcess(cmd, nil, ofFamily)
	if err != nil {
		in.Close()
		out.Close()
		return fail(err)
	}
	return &Piped{Process: p, In: in, Out: out, log: said}, nil
}
