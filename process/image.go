package process

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/custodymq/custody/tasks"
)

// contained is a program in a container, which is removed when it has ended.
// Unlike a child process it outlives a harness that is killed: see Containers.
type contained struct {
	*life
	docker client.APIClient
	id     string
}

const (
	// orderTime bounds one order to the engine, and what follows an end.
	orderTime = 30 * time.Second
	// killedCode is how the engine tells of an end by SIGKILL.
	killedCode = 128 + int64(syscall.SIGKILL)
)

func launchContained(ctx context.Context, o ProgramOptions, log io.Writer) (*contained, error) {
	if err := ImageExists(ctx, o.Image); err != nil {
		return nil, err
	}
	engine, err := docker(ctx)
	if err != nil {
		return nil, err
	}
	// The engine may carry out an order whose caller has gone, and then nobody
	// knows the container. So each order is seen through.
	seen, cancel := context.WithTimeout(context.WithoutCancel(ctx), orderTime)
	defer cancel()
	created, err := engine.CreateContainer(seen, request(o))
	if err != nil {
		if created != nil {
			err = errors.Join(err, remove(ctx, engine.Client(), created.GetContainerID()))
		}
		return nil, fmt.Errorf("container of %s: %w", o.Image, err)
	}
	c := &contained{docker: engine.Client(), id: created.GetContainerID()}
	c.life = &life{name: "container " + c.id[:12], signal: c.send, exited: make(chan struct{})}
	// From here on the container lives longer than ctx.
	living, end := context.WithCancel(context.WithoutCancel(ctx))
	exit := c.docker.ContainerWait(living, c.id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := c.docker.ContainerStart(seen, c.id, client.ContainerStartOptions{}); err != nil {
		end()
		_ = exitOfContainer(exit)
		return nil, fmt.Errorf("container of %s: %w", o.Image, errors.Join(err, remove(ctx, c.docker, c.id)))
	}
	logged := make(chan struct{})
	tasks.Go(func() {
		defer close(logged)
		c.copyLog(living, log)
	})
	tasks.Go(func() {
		e := exitOfContainer(exit)
		rest := time.AfterFunc(orderTime, tasks.Guarded(end)) // of a log that does not end
		<-logged
		rest.Stop()
		end()
		c.left = remove(living, c.docker, c.id)
		c.ended(e, o.Exited)
	})
	return c, nil
}

// request is the container that differs least from a child process.
func request(o ProgramOptions) testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image:      o.Image,
		Name:       "custody-" + strings.ToLower(rand.Text()[:12]),
		Entrypoint: append([]string{o.Path}, o.Args...),
		Labels:     labels(),
		ConfigModifier: func(c *container.Config) {
			c.Env, c.WorkingDir = o.Env, o.Dir
			c.User = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
		},
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = "host"
			h.LogConfig = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "64m", "max-file": "2"}}
			if o.Dir != "" {
				h.Mounts = []mount.Mount{{Type: mount.TypeBind, Source: o.Dir, Target: o.Dir}}
			}
		},
	}
}

func exitOfContainer(w client.ContainerWaitResult) Exit {
	select {
	case r := <-w.Result:
		switch {
		case r.Error != nil:
			return Exit{Code: -1, Signal: r.Error.Message}
		case r.StatusCode == killedCode:
			return Exit{Code: -1, Signal: syscall.SIGKILL.String()}
		}
		return Exit{Code: int(r.StatusCode)}
	case err := <-w.Error:
		return Exit{Code: -1, Signal: err.Error()}
	}
}

// copyLog reads what the program prints until it has ended.
func (c *contained) copyLog(ctx context.Context, to io.Writer) {
	stream, err := c.docker.ContainerLogs(ctx, c.id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
	if err == nil {
		defer stream.Close()
		_, err = stdcopy.StdCopy(to, to, stream)
	}
	if err != nil {
		fmt.Fprintf(to, "process: no more can be read of the log of %s: %v\n", c.name, err)
	}
}

// remove is done whether or not ctx has ended.
func remove(ctx context.Context, docker client.APIClient, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), orderTime)
	defer cancel()
	defer docker.Close() // of what it keeps open for the next order
	_, err := docker.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("process: remove container %s: %w", id[:12], err)
	}
	return nil
}

// send delivers a signal; a container stops and continues as a whole.
func (c *contained) send(ctx context.Context, sig syscall.Signal) error {
	var err error
	switch sig {
	case syscall.SIGSTOP:
		_, err = c.docker.ContainerPause(ctx, c.id, client.ContainerPauseOptions{})
	case syscall.SIGCONT:
		_, err = c.docker.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{})
	default:
		_, err = c.docker.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: fmt.Sprint(int(sig))})
		if errdefs.IsConflict(err) || errdefs.IsNotFound(err) {
			err = errors.Join(os.ErrProcessDone, err)
		}
	}
	if err != nil {
		return fmt.Errorf("process: %s to %s: %w", sig, c.name, err)
	}
	return nil
}

// Pause returns when every process in the container is frozen.
func (c *contained) Pause(ctx context.Context) error { return c.send(ctx, syscall.SIGSTOP) }

// ImageExists says whether a program can be run from the image now. The error
// says what is missing and how to get it; nothing is ever fetched from a
// registry.
func ImageExists(ctx context.Context, image string) error {
	engine, err := docker(ctx)
	if err != nil {
		return err
	}
	defer engine.Close()
	_, err = engine.Client().ImageInspect(ctx, image)
	switch {
	case errdefs.IsNotFound(err):
		how := "docker pull " + image
		if strings.HasPrefix(image, "custody/") {
			how = "make images"
		}
		return fmt.Errorf("process: no image %s on this machine; get it by: %s", image, how)
	case err != nil:
		return fmt.Errorf("process: image %s: %w", image, err)
	}
	return nil
}

// versions are what ImageVersion was told.
var versions sync.Map

// ImageVersion is what a program of the image prints, such as redis-server
// --version. It is asked once in the life of this process.
func ImageVersion(ctx context.Context, image, path string, args ...string) (string, error) {
	command := strings.Join(append([]string{image, path}, args...), " ")
	if said, ok := versions.Load(command); ok {
		return said.(string), nil
	}
	var out bytes.Buffer
	c, err := launchContained(ctx, ProgramOptions{Image: image, Path: path, Args: args}, &out)
	if err != nil {
		return "", fmt.Errorf("process: version of %s: %w", command, err)
	}
	select {
	case <-c.Exited():
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), orderTime)
		defer cancel()
		return "", fmt.Errorf("process: version of %s: %w", command, errors.Join(context.Cause(ctx), c.Kill(last)))
	}
	said := strings.TrimSpace(out.String())
	if e := c.Exit(); e.Code != 0 {
		return "", fmt.Errorf("process: version of %s: exit code %d %s: %s", command, e.Code, e.Signal, said)
	}
	versions.Store(command, said)
	return said, nil
}
