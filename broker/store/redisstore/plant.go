package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
)

// Plant writes a pending row of any payload version into an existing partition,
// as another build of the broker would have left it. It does not take ownership:
// the partition's broker may be running, and sees the row at its next start. It
// is meant for tests and tools.
func Plant(ctx context.Context, dsn string, p store.Partition, row store.Row) error {
	server, _, err := parse(dsn)
	if err != nil {
		return err
	}
	s := &Store{options: Options{Partition: p}, server: *server}
	x, err := s.connect(ctx)
	if err != nil {
		return s.wrap(err)
	}
	defer x.drop()
	keys := keysOf(p)
	known, err := x.Exists(ctx, keys[partitionKey]).Result()
	if err == nil && known == 0 {
		err = errors.New("there is no such partition")
	}
	if err != nil {
		return s.wrap(err)
	}
	before, err := x.HIncrBy(ctx, keys[partitionKey], "planted", 1).Result()
	if err != nil {
		return s.wrap(err)
	}
	values, err := encode(&row, planted+before)
	if err != nil {
		return s.wrap(err)
	}
	order := orderText(planted + before)
	_, err = x.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, keys[1], row.MessageID, order)
		for i, key := range keys[2:5] {
			pipe.HSet(ctx, key, order, values[1+i])
		}
		pipe.ZAdd(ctx, keys[pendingKey], redis.Z{Score: float64(planted + before), Member: order})
		if deadline := moment(row.ExpiresAt); deadline != "" {
			pipe.ZAdd(ctx, keys[expiryKey], redis.Z{Member: deadline + order})
		}
		return nil
	})
	if err != nil {
		return s.wrap(err)
	}
	return nil
}

// planted is the order of planted rows, after every order that a broker assigns:
// scores are exact up to 1 << 53.
const planted = 1 << 52
