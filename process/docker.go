package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"

	"github.com/custodymq/custody/tasks"
)

const ryukVariable = "TESTCONTAINERS_RYUK_DISABLED"

// connect finds the Docker engine once; testcontainers caches the result,
// including failure.
var connect = sync.OnceValues(func() (*testcontainers.DockerProvider, error) {
	// Ryuk, testcontainers' cleanup container, would be pulled from a registry.
	// The setting is read once; it is removed again so that child processes do
	// not inherit it.
	if _, set := os.LookupEnv(ryukVariable); !set {
		if err := os.Setenv(ryukVariable, "true"); err != nil {
			return nil, err
		}
		defer func() { _ = os.Unsetenv(ryukVariable) }()
	}
	switch config := testcontainers.ReadConfig().Config; {
	case !config.RyukDisabled:
		return nil, fmt.Errorf("testcontainers would pull its own images: set %s=true", ryukVariable)
	case config.HubImageNamePrefix != "":
		return nil, errors.New("testcontainers would rewrite image names: unset TESTCONTAINERS_HUB_IMAGE_NAME_PREFIX")
	}
	// The first connection logs to testcontainers' default logger, whatever is
	// passed here.
	defer log.SetDefault(log.Default())
	log.SetDefault(log.NewNoopLogger())
	return testcontainers.NewDockerProvider(testcontainers.WithLogger(log.NewNoopLogger()))
})

// docker returns a provider for the engine. Closing it only closes idle
// connections.
func docker(ctx context.Context) (*testcontainers.DockerProvider, error) {
	type found struct {
		engine *testcontainers.DockerProvider
		err    error
	}
	looked := make(chan found, 1)
	tasks.Go(func() { // the provider takes no context
		engine, err := connect()
		looked <- found{engine, err}
	})
	select {
	case f := <-looked:
		if f.err != nil {
			return nil, fmt.Errorf("process: no usable Docker engine; start one, or use installed servers: %w", f.err)
		}
		return f.engine, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("process: the Docker engine does not answer: %w", context.Cause(ctx))
	}
}

// Engine returns the name of the Docker engine. The error says why there is
// none.
func Engine(ctx context.Context) (string, error) {
	engine, err := docker(ctx)
	if err != nil {
		return "", err
	}
	defer engine.Close()
	v, err := engine.Client().ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return "", fmt.Errorf("process: version of the Docker engine: %w", err)
	}
	return "Docker " + v.Version, nil
}

// Each container is labelled with the harness that started it, so that
// containers left by a killed harness are found.
const (
	runLabel     = "org.custodymq.custody"
	harnessLabel = "org.custodymq.harness" // a Mark
)

func labels() map[string]string {
	mark, err := json.Marshal(ownMark())
	if err != nil {
		mark = nil // numbers and a string always marshal
	}
	return map[string]string{runLabel: "1", harnessLabel: string(mark)}
}

// Containers returns the leftover containers on this machine's Docker engine.
func Containers(ctx context.Context) ([]Leftover, error) {
	engine, err := docker(ctx)
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	list, err := engine.Client().ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", runLabel+"=1")})
	if err != nil {
		return nil, fmt.Errorf("process: look for containers: %w", err)
	}
	var all []Leftover
	for _, s := range list.Items {
		l := Leftover{Name: fmt.Sprintf("container %s (%s)", s.ID[:12], s.Image), Remove: func(ctx context.Context) error { return remove(ctx, engine.Client(), s.ID) }}
		all = appendLeftover(all, l, []byte(s.Labels[harnessLabel]))
	}
	return all, nil
}
