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

// containerProcess is a program in a container, which is removed once it exits. Unlike
// a child process it survives a killed harness: see Containers.
type containerProcess struct {
	*lifecycle
	docker client.APIClient
	id     string
}

const (
	// engineTimeout bounds one request to the engine, and the cleanup after an
	// exit.
	engineTimeout = 30 * time.Second
	// sigkillCode is the exit code the engine reports for SIGKILL.
	sigkillCode = 128 + int64(syscall.SIGKILL)
)

func launchContainer(ctx context.Context, o ProgramOptions, log io.Writer) (*containerProcess, error) {
	if err := ImageExists(ctx, o.Image); err != nil {
		return nil, err
	}
	engine, err := docker(ctx)
	if err != nil {
		return nil, err
	}
	// The engine may complete a request whose caller has gone, leaving an
	// unknown container, so no request is cancelled.
	seen, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	created, err := engine.CreateContainer(seen, request(o))
	if err != nil {
		if created != nil {
			err = errors.Join(err, remove(ctx, engine.Client(), created.GetContainerID()))
		}
		return nil, fmt.Errorf("container of %s: %w", o.Image, err)
	}
	c := &containerProcess{docker: engine.Client(), id: created.GetContainerID()}
	c.lifecycle = &lifecycle{name: "container " + c.id[:12], signal: c.sendSignal, exited: make(chan struct{})}
	// From here on the container outlives ctx.
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
		rest := time.AfterFunc(engineTimeout, tasks.Guarded(end)) // in case the log does not end
		<-logged
		rest.Stop()
		end()
		c.cleanupErr = remove(living, c.docker, c.id)
		c.finish(e, o.Exited)
	})
	return c, nil
}

// request configures the container to differ as little as possible from a child
// process.
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
		case r.StatusCode == sigkillCode:
			return Exit{Code: -1, Signal: syscall.SIGKILL.String()}
		}
		return Exit{Code: int(r.StatusCode)}
	case err := <-w.Error:
		return Exit{Code: -1, Signal: err.Error()}
	}
}

// copyLog copies the program's output until it exits.
func (c *containerProcess) copyLog(ctx context.Context, to io.Writer) {
	stream, err := c.docker.ContainerLogs(ctx, c.id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
	if err == nil {
		defer stream.Close()
		_, err = stdcopy.StdCopy(to, to, stream)
	}
	if err != nil {
		fmt.Fprintf(to, "process: the rest of the log of %s is lost: %v\n", c.name, err)
	}
}

// remove removes a container even after ctx has ended.
func remove(ctx context.Context, docker client.APIClient, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	defer docker.Close() // closes idle connections
	_, err := docker.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("process: remove container %s: %w", id[:12], err)
	}
	return nil
}

// sendSignal delivers a signal; pausing and continuing apply to the whole
// container.
func (c *containerProcess) sendSignal(ctx context.Context, sig syscall.Signal) error {
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

// Pause returns once every process in the container is frozen.
func (c *containerProcess) Pause(ctx context.Context) error {
	return c.sendSignal(ctx, syscall.SIGSTOP)
}

// ImageExists reports whether a program can be run from a local image. The
// error says what is missing and how to get it; nothing is ever pulled.
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
		return fmt.Errorf("process: no image %s on this machine; get it with: %s", image, how)
	case err != nil:
		return fmt.Errorf("process: image %s: %w", image, err)
	}
	return nil
}

// versions caches ImageVersion.
var versions sync.Map

// ImageVersion returns what a program in the image prints, such as for
// redis-server --version. It runs once per process.
func ImageVersion(ctx context.Context, image, path string, args ...string) (string, error) {
	command := strings.Join(append([]string{image, path}, args...), " ")
	if said, ok := versions.Load(command); ok {
		return said.(string), nil
	}
	var out bytes.Buffer
	c, err := launchContainer(ctx, ProgramOptions{Image: image, Path: path, Args: args}, &out)
	if err != nil {
		return "", fmt.Errorf("process: version of %s: %w", command, err)
	}
	select {
	case <-c.Exited():
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
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
